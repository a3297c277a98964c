import random
from typing import Any

import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from gradwire_gateware.packer import find_peaks, peaks_latency


class Peaks(wiring.Component):  # type: ignore[misc]
    """The largest of a block's bytes."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        ports = {"bytes": In(8 * lanes), "moves": In(1), "opens": In(1), "closes": In(1)}
        super().__init__({**ports, "found": Out(1), "peak": Out(8)})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        numbers = [self.bytes.word_select(lane, 8) for lane in range(self.lanes)]
        found, peak = find_peaks(m, numbers, self.moves, self.opens, self.closes)
        m.d.comb += [self.found.eq(found), self.peak.eq(peak)]
        return m


@pytest.mark.parametrize("lanes", [1, 8])
def test_every_block_has_its_own_peak(lanes: int) -> None:
    draw = random.Random(lanes)
    blocks = [[draw.randbytes(lanes) for _ in range(draw.randint(1, 5))] for _ in range(60)]
    block, found = Peaks(lanes), []

    async def drive(ctx: Any) -> None:
        words = [(word, at, len(each)) for each in blocks for at, word in enumerate(each)]
        idle = [(b"", 0, 0)] * (peaks_latency(lanes) + 1)
        for word, at, count in words + idle:
            moves = bool(word) and draw.random() < 0.7
            while True:
                ctx.set(block.bytes, int.from_bytes(word, "little"))
                ctx.set(block.moves, moves)
                ctx.set(block.opens, at == 0)
                ctx.set(block.closes, at == count - 1)
                _, _, is_there, peak = await ctx.tick().sample(block.found, block.peak)
                if is_there:
                    found.append(peak)
                if moves or not word:
                    break
                moves = draw.random() < 0.7

    simulator = Simulator(block)
    simulator.add_clock(1e-8)
    simulator.add_testbench(drive)
    simulator.run()
    assert found == [max(b"".join(each)) for each in blocks]
