import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from gradwire_gateware.errbound.relative import bracketed, latency
from gradwire_gateware.errbound.share import BIAS, COUNT_BITS
from support.squares import Floats, blocks, sum_of

TO_LIMITS = 5


class Limits(wiring.Component):  # type: ignore[misc]
    """The limits of a block's sum."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        super().__init__(
            {
                "word": In(32 * lanes), "keep": In(lanes), "moves": In(1), "opens": In(1), "closes": In(1),
                "found": Out(1), "significand": Out(53), "exponent": Out(10), "count": Out(COUNT_BITS),
            }
        )  # fmt: skip

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        lanes = [self.word.word_select(lane, 32) for lane in range(self.lanes)]
        found, limit, count = bracketed(m, lanes, self.keep, self.moves, self.opens, self.closes)
        m.d.comb += [
            self.found.eq(found),
            self.significand.eq(limit.significand),
            self.exponent.eq(limit.exponent),
            self.count.eq(count),
        ]
        return m


def limits_of(given: list[Floats], lanes: int) -> list[tuple[Fraction, Fraction, int]]:
    """Return both limits of blocks' sums, and how many values are finite."""
    block, seen, ended = Limits(lanes), [], []

    async def drive(ctx: Any) -> None:
        async def step() -> None:
            seen.append(
                (await ctx.tick().sample(block.found, block.significand, block.exponent, block.count))[2:]
            )

        for x in given:
            padded = np.zeros(-(-len(x) // lanes) * lanes, np.float32)
            padded[: len(x)] = x
            words = padded.view(np.uint32).reshape(-1, lanes)
            for at, word in enumerate(words):
                ctx.set(block.word, int.from_bytes(word.tobytes(), "little"))
                ctx.set(block.keep, (1 << min(lanes, len(x) - at * lanes)) - 1)
                ctx.set(block.moves, 1)
                ctx.set(block.opens, at == 0)
                ctx.set(block.closes, at == len(words) - 1)
                await step()
            ended.append(len(seen))
            ctx.set(block.moves, 0)
            await step()
        for _ in range(latency(lanes) + 2):
            await step()

    simulator = Simulator(block)
    simulator.add_clock(1e-8)
    simulator.add_testbench(drive)
    simulator.run()
    cycles = [at for at, (found, *_) in enumerate(seen) if found]
    assert cycles == [end - 1 + latency(lanes) for end in ended]

    def value(at: int) -> Fraction:
        return Fraction(seen[at][1]) * Fraction(2) ** int(seen[at][2] - BIAS)

    return [(value(at), value(at + 1), seen[at - TO_LIMITS][3]) for at in cycles]


def many(lanes: int) -> list[Floats]:
    """Return more blocks than ``blocks``: of one value, with values that grow or fall, and short ones."""
    draw = np.random.default_rng(4)
    powers = np.ldexp(np.float32(1), np.arange(-126, 128)).astype(np.float32)
    grown = (powers * draw.uniform(1, 2, len(powers))).astype(np.float32)
    ends = [draw.standard_normal(int(count)).astype(np.float32) for count in draw.integers(1, 40, 20)]
    return [*blocks(lanes), grown, grown[::-1], draw.permutation(grown), powers[:1], powers[-1:], *ends]


@pytest.mark.parametrize("lanes", [8, 16])
def test_the_cpus_sum_lies_between_the_limits(lanes: int) -> None:
    given = many(lanes)
    for x, (low, high, count) in zip(given, limits_of(given, lanes), strict=True):
        total = sum_of(x)
        assert low <= Fraction(total) <= high
        assert count == np.isfinite(x).sum()
        if total > 2.0**-220:
            assert high - low <= Fraction(total) * Fraction(2) ** -12


@pytest.mark.parametrize("lanes", [8, 16])
def test_limits_are_the_sum_where_nothing_is_lost(lanes: int) -> None:
    draw = np.random.default_rng(5)
    some = draw.choice([-3.0, -0.25, 0.0, 0.5, 1.0, 1.875], 200).astype(np.float32)
    given = [some, some * np.float32(2.0**100), np.zeros(9, np.float32), np.full(9, 2.0**-110, np.float32)]
    given += [np.full(17, np.inf, np.float32), np.array([2.0**-7, 256.0, math.nan], np.float32)]
    for x, (low, high, _) in zip(given, limits_of(given, lanes), strict=True):
        assert low == high == sum_of(x)


def test_a_long_block_of_the_largest_floats_does_not_overflow() -> None:
    x = np.full(65536, np.finfo(np.float32).max, np.float32)
    ((low, high, count),) = limits_of([x], 16)
    assert low <= Fraction(sum_of(x)) <= high <= low * Fraction(1 + 2.0**-12)
    assert count == 65536
