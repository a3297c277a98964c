"""Sums of squares in double precision, with the CPU's bits: sixteen sums of a block, which are then folded.

All terms are positive, so an addition needs no search for the highest bit. A sum is a significand of 53
bits, 0 or with its highest bit set, times 2^(exponent - ``BIAS``).
"""

from __future__ import annotations

from typing import NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, Value

from gradwire.gateware.stream import Pipeline, leading_zeros
from gradwire.gateware.words import LANE_BITS

SIGNIFICAND_BITS = 53
EXPONENT_BITS = 10
BIAS = 370
LATENCY = 5
"""Stages from a word to the sums that hold its squares."""
SUMS = 16
FOLD_CYCLES = SUMS
"""From a block's sums to its own, which is when the next ones may come."""
COUNT_BITS = 17
"""Of the values of a block, 65536 at most."""
_OFFSET = 32
"""Keeps the exponents of normalised subnormals positive."""
_BITS = SIGNIFICAND_BITS + EXPONENT_BITS


class Double(NamedTuple):
    """A number that is not negative."""

    significand: Value
    exponent: Value

    @classmethod
    def of(cls, bits: Value) -> Double:
        """Return the number of a register."""
        return cls(bits[:SIGNIFICAND_BITS], bits[SIGNIFICAND_BITS:_BITS])


def squared(m: Module, stage: Pipeline, x: Value) -> Double:
    """Return the registers of the square of a float32, four stages after it; 0 if it is not finite."""
    is_normal = x[23:31] != 0
    significand, all_bits = Cat(x[:23], is_normal), Signal(LANE_BITS)
    m.d.comb += all_bits.eq(Cat(Const(0, 8), significand))
    zeros = Mux(is_normal, 0, leading_zeros(all_bits))
    counts = (x[23:31] != 255) & (x[:31] != 0)
    power = stage.hold((x[23:31] + ~is_normal + _OFFSET - zeros)[:9])
    zeros, significand, counts = stage.hold(zeros), stage.hold(significand), stage.hold(counts)

    significand = stage.hold((significand << zeros)[:24])
    power, counts = stage.hold(power), stage.hold(counts)

    product = stage.hold(significand * significand)
    power, counts = stage.hold(power), stage.hold(counts)

    top = product[47]
    normal = Mux(top, Cat(Const(0, 5), product), Cat(Const(0, 6), product))[:SIGNIFICAND_BITS]
    return Double(
        stage.hold(Mux(counts, normal, 0)), stage.hold(Mux(counts, Cat(top, power), 0)[:EXPONENT_BITS])
    )


def added(m: Module, a: Double, b: Double) -> Value:
    """Return the sum of two numbers, rounded to nearest even, significand first."""
    swaps = a.exponent < b.exponent
    large, small, gap, exponent = (
        Signal(SIGNIFICAND_BITS), Signal(SIGNIFICAND_BITS), Signal(6), Signal(EXPONENT_BITS)
    )  # fmt: skip
    distance = Mux(swaps, b.exponent - a.exponent, a.exponent - b.exponent)
    exact, total = Signal(2 * SIGNIFICAND_BITS + 3), Signal(SIGNIFICAND_BITS + 3)
    rounded, result = Signal(SIGNIFICAND_BITS + 1), Signal(_BITS)
    m.d.comb += [
        large.eq(Mux(swaps, b.significand, a.significand)),
        small.eq(Mux(swaps, a.significand, b.significand)),
        exponent.eq(Mux(swaps, b.exponent, a.exponent)),
        gap.eq(Mux(distance[6:EXPONENT_BITS].any(), 63, distance[:6])),
        exact.eq(Cat(Const(0, SIGNIFICAND_BITS + 3), small) >> gap),
        total.eq(Cat(Const(0, 2), large) + exact[SIGNIFICAND_BITS + 1 :]),
    ]
    lost, carry = exact[: SIGNIFICAND_BITS + 1].any(), total[-1]
    kept = Mux(carry, total[3:], total[2:-1])
    half, below = Mux(carry, total[2], total[1]), lost | total[0] | (carry & total[1])
    m.d.comb += [
        rounded.eq(kept + (half & (below | kept[0]))),
        result.eq(
            Cat(
                rounded[: SIGNIFICAND_BITS - 1],
                rounded[SIGNIFICAND_BITS - 1] | rounded[-1],
                (exponent + carry + rounded[-1])[:EXPONENT_BITS],
            )
        ),
    ]
    return result


def summed(
    m: Module, lanes: list[Value], counted: Value, moves: Value, opens: Value, closes: Value
) -> tuple[Value, Double, Value]:
    """Return when the sum of a block's squares is there, the sum, and the sum of what is ``counted``.

    A word's lanes come in the cycles of ``moves``; ``opens`` and ``closes`` mark a block's first and last
    word. Between two words that close blocks are at least ``FOLD_CYCLES`` cycles.
    """
    stage = Pipeline(m, Const(1))
    terms = [squared(m, stage, lane) for lane in lanes]
    for _ in range(LATENCY - 1):
        moves, opens, closes = stage.hold(moves, resets=True), stage.hold(opens), stage.hold(closes)
        counted = stage.hold(counted)
    turns = SUMS // len(lanes)
    turn = Signal(range(max(2, turns)))
    here = Mux(opens, 0, turn)
    sums = [Signal(_BITS, name=f"sum{at}") for at in range(SUMS)]
    for at, term in enumerate(terms):
        places = sums[at :: len(lanes)]
        before = places[0] if turns == 1 else Mux(turn == 1, places[1], places[0])
        after = added(m, Double.of(Mux(opens, 0, before)), term)
        for other, place in enumerate(places):
            with m.If(moves & (here == other)):
                m.d.sync += place.eq(after)
            with m.Elif(moves & opens):
                m.d.sync += place.eq(0)
    count = Signal(COUNT_BITS)
    with m.If(moves):
        m.d.sync += [
            turn.eq(Mux(here == turns - 1, 0, here + 1)),
            count.eq(Mux(opens, 0, count) + counted),
        ]
    comes = stage.hold(moves & closes, resets=True)
    of_block = Signal.like(count)
    with m.If(comes):
        m.d.sync += of_block.eq(count)
    return *_folded(m, comes, sums), of_block


def _folded(m: Module, comes: Value, sums: list[Signal]) -> tuple[Value, Double]:
    """Return when the fold of the sums is there, and the fold: in one adder, by halves.

    Each step shifts the sums down and puts a new one at the top, so that its operands are at few places.
    """
    waiting = [Signal(_BITS, name=f"waiting{at}", reset_less=True) for at in range(SUMS)]
    step, works = Signal(range(SUMS)), Signal()
    first: Value = waiting[0]
    second: Value = waiting[8]
    for start, at, other in ((8, 8, 12), (12, 12, 14), (14, 14, 15)):
        first = Mux(step >= start, waiting[at], first)
        second = Mux(step >= start, waiting[other], second)
    new = added(m, Double.of(first), Double.of(second))
    is_there, is_last = Signal(), step == SUMS - 2
    m.d.sync += is_there.eq(works & is_last)
    with m.If(comes):
        m.d.sync += [works.eq(1), step.eq(0), *(at.eq(each) for at, each in zip(waiting, sums, strict=True))]
    with m.Elif(works):
        m.d.sync += [at.eq(above) for at, above in zip(waiting, [*waiting[1:], new], strict=True)]
        m.d.sync += [step.eq(step + 1), works.eq(~is_last)]
    return is_there, Double.of(waiting[-1])
