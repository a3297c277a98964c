"""What NICs make of a stream, headers included: how many times fewer bytes cross the link.

A NIC encodes what TCP sends, not the headers of its packets. Where it encodes each segment by itself, headers
cap what a codec gains; where a packet stands for several segments, they shrink almost as values do.
"""

from __future__ import annotations

import math

from gradwire.errors import SpecError

IP_AND_TCP_NBYTES = 20 + 32
"""Of every packet; TCP's timestamps are usual."""
ETHERNET_NBYTES = 14
SHIM_NBYTES = 8
"""What a compressed packet has before its body."""


MOST_AT_ONCE_NBYTES = 1 << 16
"""A host's kernel leaves no larger packets to a NIC."""
FILL = 0.97
"""The share of a packet that a NIC which merges segments tries to fill (kCaution in native/nic/engine.cc)."""


def packet_ratio(
    ratio: float, mtu_nbytes: int, *, merge: bool = True, at_once_nbytes: float = MOST_AT_ONCE_NBYTES
) -> float:
    """Return how many times fewer bytes of frames cross a link for a codec with this ratio.

    Acknowledgements aren't counted.

    Parameters
    ----------
    merge
        As the NICs' setting.
    at_once_nbytes
        The payload that a host's kernel leaves to its NIC at once. The last packet of it isn't full.

    Raises
    ------
    SpecError
        For an MTU that has no room for a segment.

    Examples
    --------
    >>> round(packet_ratio(4.6, 1400, merge=False), 2), round(packet_ratio(4.6, 1400), 2)
    (3.85, 4.56)
    """
    segment_nbytes = mtu_nbytes - IP_AND_TCP_NBYTES
    if segment_nbytes <= SHIM_NBYTES:
        raise SpecError(f"a NIC needs an MTU of more than {mtu_nbytes - segment_nbytes + SHIM_NBYTES} bytes")
    headers_nbytes = IP_AND_TCP_NBYTES + ETHERNET_NBYTES
    frame_nbytes = segment_nbytes + headers_nbytes
    single_nbytes = headers_nbytes + min(segment_nbytes, segment_nbytes / ratio + SHIM_NBYTES)
    if not merge:
        return frame_nbytes / single_nbytes
    segments = max(2, math.floor(at_once_nbytes / segment_nbytes))
    body_nbytes = segments * segment_nbytes / ratio
    packets = math.ceil(body_nbytes / (FILL * (segment_nbytes - SHIM_NBYTES)))
    merged_nbytes = packets * (headers_nbytes + SHIM_NBYTES) + body_nbytes
    return max(frame_nbytes / single_nbytes, segments * frame_nbytes / merged_nbytes)
