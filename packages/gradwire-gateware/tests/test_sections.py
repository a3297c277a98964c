import random
from itertools import accumulate
from typing import Any

import pytest
from amaranth import Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from gradwire_gateware.queues import Queue
from gradwire_gateware.sections import Countdown, cut, join
from gradwire_gateware.stream import AxiStream, block_ports
from support.axi import STALLS, Run, bench, consumed, produced, transfer

SIZES = (5, 0, 70, 45)


class Section(wiring.Component):  # type: ignore[misc]
    """One of the sections of packets."""

    def __init__(self, at: int) -> None:
        self._at = at
        super().__init__(block_ports(256))

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        sections = cut(m, self.s_axis, Const(1, 1), [(Const(nbytes), nbytes, 8) for nbytes in SIZES])
        for at, section in enumerate(sections):
            if at == self._at:
                wiring.connect(m, section, wiring.flipped(self.m_axis))
            else:
                m.d.comb += section.tready.eq(1)
        return m


class Joined(wiring.Component):  # type: ignore[misc]
    """Packets of three streams, put together."""

    def __init__(self) -> None:
        super().__init__({"come": In(AxiStream(256)).array(3), "m_axis": Out(AxiStream(256))})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        join(m, list(self.come), self.m_axis)
        return m


@pytest.mark.parametrize("at", range(len(SIZES)))
def test_every_section_is_cut_out(at: int) -> None:
    draw = random.Random(2)
    packets = [draw.randbytes(sum(SIZES)) for _ in range(10)]
    end = list(accumulate(SIZES))[at]
    assert transfer(bench(Section, at), packets, "random").packets == [
        packet[end - SIZES[at] : end] for packet in packets
    ]


@pytest.mark.parametrize("stalls", STALLS)
def test_sections_are_put_together_without_gaps(stalls: str) -> None:
    draw = random.Random(3)
    parts = [[draw.randbytes(draw.choice([0, 1, 31, 32, 33, 90])) for _ in range(20)] for _ in range(3)]
    block, run = Joined(), Run()
    simulator = Simulator(block)
    simulator.add_clock(1e-8)
    for at, packets in enumerate(parts):
        simulator.add_process(produced(block.come[at], packets, stalls, Run(), seed=at))
    simulator.add_testbench(consumed(block.m_axis, 20, stalls, run))
    simulator.run()
    assert run.packets == [b"".join(each) for each in zip(*parts, strict=True)]


def test_words_of_packets_are_counted_down() -> None:
    draw = random.Random(4)
    values = [draw.choice([0, 1, 7, 8, 9, 16, 17, 40]) for _ in range(60)]
    m = Module()
    counts = Queue(m, "counts", {"values": 7})
    puts, value, may_move, moves = Signal(), Signal(7), Signal(), Signal()
    words = Countdown(m, counts, 8, moves)
    m.d.comb += moves.eq(may_move & words.has)
    counts.put(puts & counts.has_room, values=value)
    found: list[tuple[int, int]] = []

    async def produce(ctx: Any) -> None:
        for each in values:
            ctx.set(value, each)
            ctx.set(puts, 1)
            *_, taken = await ctx.tick().sample(counts.has_room)
            while not taken:
                *_, taken = await ctx.tick().sample(counts.has_room)
            ctx.set(puts, 0)
            await ctx.tick().repeat(draw.choice([1, 1, 1, 9]))

    async def consume(ctx: Any) -> None:
        while sum(last for _, last in found) < len(values):
            ctx.set(may_move, draw.random() < 0.8)
            *_, moved, kept, last = await ctx.tick().sample(moves, words.kept, words.is_last)
            if moved:
                found.append((kept, last))

    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_process(produce)
    simulator.add_testbench(consume)
    simulator.run()
    wanted = []
    for each in values:
        whole, rest = divmod(max(each, 1) - 1, 8)
        wanted += [(255, 0)] * whole + [((1 << (rest + (each != 0))) - 1, 1)]
    assert found == wanted
