import math
from typing import Any

import numpy as np
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from gradwire.gateware.errbound.squares import (
    BIAS,
    COUNT_BITS,
    FOLD_CYCLES,
    FOLD_LATENCY,
    LATENCY,
    summed,
)

LANES = 8


class Sums(wiring.Component):  # type: ignore[misc]
    """The sum of a block's squares."""

    def __init__(self) -> None:
        super().__init__(
            {
                "word": In(32 * LANES), "moves": In(1), "opens": In(1), "closes": In(1),
                "found": Out(1), "significand": Out(53), "exponent": Out(10), "count": Out(COUNT_BITS),
            }
        )  # fmt: skip

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        lanes = [self.word.word_select(lane, 32) for lane in range(LANES)]
        found, total, count = summed(m, lanes, self.moves, self.moves, self.opens, self.closes)
        m.d.comb += [
            self.found.eq(found),
            self.significand.eq(total.significand),
            self.exponent.eq(total.exponent),
            self.count.eq(count),
        ]
        return m


def blocks() -> list[np.ndarray]:
    draw = np.random.default_rng(3)
    made = []
    for at in range(15):
        count = LANES * int(draw.integers(1, 9))
        x = (draw.standard_normal(count) * 10.0 ** draw.integers(-20, 20)).astype(np.float32)
        if at % 5 == 1:
            x = draw.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
        if at % 5 == 2:  # subnormals, and what is just above them
            x = draw.integers(0, 1 << 24, count).astype(np.uint32).view(np.float32)
        if at % 5 == 3:
            x[::3] = np.inf
        if at % 5 == 4:
            x = np.full(count, at % 2, np.float32)
        made.append(x)
    return made


def sum_of(x: np.ndarray) -> float:
    """Return the sum as the definition in native/kernels/errbound.h adds it up."""
    sums = [0.0] * 16
    for at, value in enumerate(map(float, x)):
        sums[at % 16] += value * value if math.isfinite(value) else 0.0
    for half in (8, 4, 2, 1):
        sums = [sums[at] + sums[at + half] for at in range(half)]
    return sums[0]


def test_sums_have_the_cpus_bits() -> None:
    block, given, found = Sums(), blocks(), []

    async def drive(ctx: Any) -> None:
        async def step() -> None:
            _, _, is_there, significand, exponent, count = await ctx.tick().sample(
                block.found, block.significand, block.exponent, block.count
            )
            if is_there:
                found.append((math.ldexp(significand, exponent - BIAS), count))

        for x in given:
            words = x.view(np.uint32).reshape(-1, LANES)
            for at, word in enumerate(words):
                ctx.set(block.word, int.from_bytes(word.tobytes(), "little"))
                ctx.set(block.moves, 1)
                ctx.set(block.opens, at == 0)
                ctx.set(block.closes, at == len(words) - 1)
                await step()
            ctx.set(block.moves, 0)
            for _ in range(FOLD_CYCLES - 1):
                await step()
        for _ in range(LATENCY + FOLD_LATENCY):
            await step()

    simulator = Simulator(block)
    simulator.add_clock(1e-8)
    simulator.add_testbench(drive)
    simulator.run()
    assert [total for total, _ in found] == [sum_of(x) for x in given]
    assert [count for _, count in found] == [len(x) // LANES for x in given]
