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
LATENCY = 6
"""Stages from a word to the sums that hold its squares, at most."""
_SQUARED = 4
"""Those to the squares."""
SUMS = 16
FOLD_CYCLES = SUMS
"""From a block's sums to when the next ones may come."""
FOLD_LATENCY = FOLD_CYCLES + 2
"""From a block's sums to its own."""
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


def aligned(m: Module, a: Double, b: Double) -> Value:
    """Return the first half of a sum: the larger number, the smaller one shifted to it, and the exponent."""
    swaps = a.exponent < b.exponent
    large, small, gap = Signal(SIGNIFICAND_BITS), Signal(SIGNIFICAND_BITS), Signal(6)
    exponent, exact = Signal(EXPONENT_BITS), Signal(2 * SIGNIFICAND_BITS + 3)
    distance = Mux(swaps, b.exponent - a.exponent, a.exponent - b.exponent)
    m.d.comb += [
        large.eq(Mux(swaps, b.significand, a.significand)),
        small.eq(Mux(swaps, a.significand, b.significand)),
        exponent.eq(Mux(swaps, b.exponent, a.exponent)),
        gap.eq(Mux(distance[6:EXPONENT_BITS].any(), 63, distance[:6])),
        exact.eq(Cat(Const(0, SIGNIFICAND_BITS + 3), small) >> gap),
    ]
    lost = exact[: SIGNIFICAND_BITS + 1].any()
    return Cat(large, exponent, lost, exact[SIGNIFICAND_BITS + 1 :])


def rounded(m: Module, halves: Value) -> Value:
    """Return the second half of a sum: what ``aligned`` gave, added, and rounded to nearest even.

    The sum and the next larger number are found at once, so that rounding is a choice.
    """
    end = SIGNIFICAND_BITS + EXPONENT_BITS
    large, exponent, lost = halves[:SIGNIFICAND_BITS], halves[SIGNIFICAND_BITS:end], halves[end]
    rest, guard, small = halves[end + 1], halves[end + 2], halves[end + 3 :]
    total, above = Signal(SIGNIFICAND_BITS + 1), Signal(SIGNIFICAND_BITS + 1)
    chosen, up = Signal(SIGNIFICAND_BITS + 1), Signal()
    below, one = lost | rest, Const(1, 1)
    m.d.comb += [
        total.eq(large + small),
        above.eq((Cat(one, large) + Cat(one, small))[1:]),  # one more, in the same carry chain
        up.eq(Mux(total[-1], total[0] & (below | guard | total[1]), guard & (below | total[0]))),
        chosen.eq(Mux(up, above, total)),
    ]
    carry = chosen[-1]
    significand = Mux(carry, chosen[1:], chosen[:-1])
    return Cat(significand, (exponent + carry)[:EXPONENT_BITS])


def summed(
    m: Module, lanes: list[Value], counted: Value, moves: Value, opens: Value, closes: Value
) -> tuple[Value, Double, Value]:
    """Return when the sum of a block's squares is there, the sum, and the sum of what is ``counted``.

    A word's lanes come in the cycles of ``moves``; ``opens`` and ``closes`` mark a block's first and last
    word. Between two words that close blocks are at least ``FOLD_CYCLES`` cycles. If a word has half of the
    sixteen values, each sum has two cycles for its next term, and so two stages.
    """
    stage = Pipeline(m, Const(1))
    terms = [squared(m, stage, lane) for lane in lanes]
    for _ in range(_SQUARED):
        moves, opens, closes = stage.hold(moves, resets=True), stage.hold(opens), stage.hold(closes)
        counted = stage.hold(counted)
    turns = SUMS // len(lanes)
    turn = Signal(range(max(2, turns)))
    here = Mux(opens, 0, turn)
    sums = [Signal(_BITS, name=f"sum{at}") for at in range(SUMS)]

    def half(value: Value, *, resets: bool = False) -> Value:
        return value if turns == 1 else stage.hold(value, resets=resets)

    writes, clears, place_of = half(moves, resets=True), half(opens), half(here)
    # The sums of a block's second word are cleared while it is aligned to them.
    begins = opens if turns == 1 else opens | (writes & clears)
    for at, term in enumerate(terms):
        places = sums[at :: len(lanes)]
        before = places[0] if turns == 1 else Mux(turn == 1, places[1], places[0])
        after = rounded(m, half(aligned(m, Double.of(Mux(begins, 0, before)), term)))
        for other, place in enumerate(places):
            with m.If(writes & (place_of == other)):
                m.d.sync += place.eq(after)
            with m.Elif(writes & clears):
                m.d.sync += place.eq(0)
    count = Signal(COUNT_BITS)
    with m.If(moves):
        m.d.sync += [
            turn.eq(Mux(here == turns - 1, 0, here + 1)),
            count.eq(Mux(opens, 0, count) + counted),
        ]
    closed = stage.hold(moves & closes, resets=True)
    of_block: Value = Signal.like(count)
    with m.If(closed):
        m.d.sync += of_block.eq(count)
    for _ in range(FOLD_LATENCY - FOLD_CYCLES + 1):  # stays until the fold is there
        of_block = stage.hold(of_block)
    return *_folded(m, half(closed, resets=True), sums), of_block


def _folded(m: Module, comes: Value, sums: list[Signal]) -> tuple[Value, Double]:
    """Return when the fold of the sums is there, and the fold: in one adder of two stages, by halves.

    Each step shifts the sums down and puts a new one at the top, so that its operands are at few places. A
    sum is there two steps after its operands, so that the last step waits for a cycle.
    """
    stage = Pipeline(m, Const(1))
    waiting = [Signal(_BITS, name=f"waiting{at}", reset_less=True) for at in range(SUMS)]
    step, works = Signal(range(SUMS)), Signal()
    first: Value = waiting[0]
    second: Value = waiting[8]
    for start, at, other in ((8, 9, 13), (12, 13, 15), (14, 14, 15)):
        first = Mux(step >= start, waiting[at], first)
        second = Mux(step >= start, waiting[other], second)
    new = rounded(m, stage.hold(aligned(m, Double.of(first), Double.of(second))))
    is_last = step == SUMS - 1
    is_there = stage.hold(stage.hold(works & is_last, resets=True), resets=True)
    with m.If(comes):
        m.d.sync += [works.eq(1), step.eq(0), *(at.eq(each) for at, each in zip(waiting, sums, strict=True))]
    with m.Elif(works):
        m.d.sync += [at.eq(above) for at, above in zip(waiting, [*waiting[1:], new], strict=True)]
        m.d.sync += [step.eq(step + 1), works.eq(~is_last)]
    return is_there, Double.of(stage.hold(new))
