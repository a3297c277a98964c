from typing import Any

import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator

from gradwire.codecs import parse
from gradwire.codecs.inceptionn import Inceptionn
from gradwire_gateware.nic.card import Card
from gradwire_gateware.nic.packets import COMPRESSED
from support.axi import Run, consumed, produced
from support.hardware_chunks import EXHAUSTIVE
from support.nic_frames import connected, other_frames, software_nic, stream_frames
from support.nic_hardware import open_flow

FIRST = 40


@pytest.mark.parametrize("width", [256, 512] if EXHAUSTIVE else [256])
def test_two_cards_carry_both_ways_at_once(width: int) -> None:
    codec = parse("inceptionn:2^-10")
    assert isinstance(codec, Inceptionn)
    m = Module()
    cards = [Card(codec, width), Card(codec, width)]
    m.submodules += cards
    for card, other in (cards, cards[::-1]):
        wiring.connect(m, card.link_m_axis, other.link_s_axis)
    nic = software_nic("inceptionn:2^-10")
    connected(nic, FIRST)
    sent = [stream_frames(5, FIRST, seed, mtu=300) for seed in (1, 2)]
    sent[1] += other_frames(FIRST)[1:5]
    on_link = [[nic.handle(True, frame, 0)[0] for frame in frames] for frames in sent]
    assert all(any(frame[23] == COMPRESSED for frame in frames) for frames in on_link)
    expected = [[nic.handle(False, frame, 0)[0] for frame in frames] for frames in on_link]

    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    runs = [Run(), Run()]
    for card, other, frames, run in zip(cards, cards[::-1], sent, runs, strict=True):

        async def begin(ctx: Any, card: Card = card, frames: list[bytes] = frames, run: Run = run) -> None:
            await open_flow(ctx, card, FIRST)
            await produced(card.host_s_axis, frames, "random", run)(ctx)

        simulator.add_process(begin)
        simulator.add_testbench(consumed(other.host_m_axis, len(frames), "random", run))
    simulator.run()
    assert [run.packets for run in runs] == expected
