"""What NICs make of a stream, headers included: how many times fewer bytes cross the link.

A NIC encodes what TCP sends, not the headers of its packets. Where it encodes each segment by itself, headers
cap what a codec gains; where a packet stands for several segments, they shrink as values do.
"""

from __future__ import annotations

from gradwire.errors import SpecError

IP_AND_TCP_NBYTES = 20 + 32
"""Of every packet; TCP's timestamps are usual."""
ETHERNET_NBYTES = 14
SHIM_NBYTES = 8
"""What a compressed packet has before its body."""


def packet_ratio(ratio: float, mtu_nbytes: int, *, merge: bool = True) -> float:
    """Return how many times fewer bytes of frames cross a link for a codec with this ratio.

    ``merge`` is that of the NICs. Acknowledgements aren't counted. Raises ``SpecError`` for an MTU that has
    no room for a segment.

    Examples
    --------
    >>> round(packet_ratio(4.6, 1400, merge=False), 2), round(packet_ratio(4.6, 1400), 2)
    (3.85, 4.57)
    """
    segment_nbytes = mtu_nbytes - IP_AND_TCP_NBYTES
    if segment_nbytes <= SHIM_NBYTES:
        raise SpecError(f"a NIC needs an MTU of more than {mtu_nbytes - segment_nbytes + SHIM_NBYTES} bytes")
    headers_nbytes = IP_AND_TCP_NBYTES + ETHERNET_NBYTES
    frame_nbytes = segment_nbytes + headers_nbytes
    single_nbytes = headers_nbytes + min(segment_nbytes, segment_nbytes / ratio + SHIM_NBYTES)
    if not merge:
        return frame_nbytes / single_nbytes
    segments = max(1.0, ratio * (segment_nbytes - SHIM_NBYTES) / segment_nbytes)
    return max(frame_nbytes / single_nbytes, segments)
