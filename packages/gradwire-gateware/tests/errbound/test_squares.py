import math
from typing import Any

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from gradwire_gateware.errbound.share import BIAS, summed
from support.squares import blocks, sum_of


class Sums(wiring.Component):  # type: ignore[misc]
    """The sum of a block's squares."""

    def __init__(self, lanes: int) -> None:
        super().__init__(
            {
                "word": In(32 * lanes), "is_last": In(1), "begins": In(1),
                "takes": Out(1), "found": Out(1), "significand": Out(53), "exponent": Out(10),
            }
        )  # fmt: skip

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        takes, found, total = summed(m, self.word, self.is_last, self.begins)
        m.d.comb += [
            self.takes.eq(takes),
            self.found.eq(found),
            self.significand.eq(total.significand),
            self.exponent.eq(total.exponent),
        ]
        return m


@pytest.mark.parametrize("lanes", [8, 16])
def test_sums_have_the_cpus_bits(lanes: int) -> None:
    block, given, found = Sums(lanes), blocks(lanes), []

    async def drive(ctx: Any) -> None:
        for x in given:
            words = x.view(np.uint32).reshape(-1, lanes)
            ctx.set(block.begins, 1)
            for at, word in enumerate(words):
                ctx.set(block.word, int.from_bytes(word.tobytes(), "little"))
                ctx.set(block.is_last, at == len(words) - 1)
                has_taken = 0
                while not has_taken:
                    *_, has_taken = await ctx.tick().sample(block.takes)
                    ctx.set(block.begins, 0)
            is_there = 0
            while not is_there:
                _, _, is_there, significand, exponent = await ctx.tick().sample(
                    block.found, block.significand, block.exponent
                )
            found.append(math.ldexp(significand, exponent - BIAS))

    simulator = Simulator(block)
    simulator.add_clock(1e-8)
    simulator.add_testbench(drive)
    simulator.run()
    assert found == [sum_of(x) for x in given]
