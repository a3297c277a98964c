from __future__ import annotations

from dataclasses import replace

import pytest

from gradwire._native import _core
from gradwire.errors import SpecError
from gradwire.planner.encodings import packet_ratio
from gradwire_gateware.software_nic import Settings
from support.frames import ACK, SYN, USUAL_OPTIONS, Segment
from support.nic_bed import SPEC, gradients, payload_nbytes


def frames_nbytes(spec: str, mtu: int, *, merge: bool) -> tuple[float, float]:
    """Return the ratio of a codec, and that of the frames that an engine makes of its stream."""
    card = _core.NicEngine(*Settings(spec).kernel, 0x28, merges=merge)
    peer = _core.NicEngine(*Settings(spec).kernel, 0x28, merges=merge)
    call = Segment(0, flags=SYN, options=USUAL_OPTIONS)
    for near, far, segment in ((card, peer, call), (peer, card, call.answer(flags=SYN | ACK))):
        far.handle(False, near.handle(True, segment.frame(), 0)[0], 0)
    cut, sent, raw, values = mtu - 52, 0, 0, gradients(16_000)
    for number in range(8):
        payload = values.tobytes()
        segment = Segment(1 + number * len(payload), payload, options=bytes(12))
        frames = card.handle(True, replace(segment).frame(), cut)
        if number:  # the first one tells the ratio
            sent += sum(map(len, frames))
            raw += len(payload) + -(-len(payload) // cut) * (14 + mtu - cut)
    return values.nbytes / payload_nbytes(values, spec), raw / sent


@pytest.mark.parametrize("spec", [SPEC, "truncate:16", "bitpack:3"])
@pytest.mark.parametrize("mtu", [1400, 9000])
@pytest.mark.parametrize("merge", [False, True])
def test_it_is_that_of_the_packets_that_a_nic_sends(spec: str, mtu: int, merge: bool) -> None:
    ratio, measured = frames_nbytes(spec, mtu, merge=merge)
    assert packet_ratio(ratio, mtu, merge=merge) == pytest.approx(measured, rel=0.02)


def test_headers_cap_what_a_packet_for_each_segment_gains() -> None:
    assert packet_ratio(4.6, 1400, merge=False) == pytest.approx(3.85, abs=0.01)
    assert packet_ratio(1e9, 1400, merge=False) == pytest.approx(1414 / 74)
    assert packet_ratio(4.6, 9000, merge=False) > 4.4
    assert packet_ratio(1.0, 1500) == packet_ratio(1.0, 1500, merge=False) == 1.0


def test_an_mtu_without_room_is_refused() -> None:
    with pytest.raises(SpecError, match="MTU above 60 bytes for a NIC, got 60"):
        packet_ratio(2.0, 60)
