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
LATENCY = 8
"""Stages from a word to the sums that hold its squares, at most."""
_SQUARED = 5
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
_DISTANCE_BITS = 7


class Double(NamedTuple):
    """A number that is not negative."""

    significand: Value
    exponent: Value

    @classmethod
    def of(cls, bits: Value) -> Double:
        """Return the number of a register."""
        return cls(bits[:SIGNIFICAND_BITS], bits[SIGNIFICAND_BITS:_BITS])


def squared(m: Module, stage: Pipeline, x: Value) -> Double:
    """Return the registers of the square of a float32, five stages after it; 0 if it is not finite.

    Stages: a subnormal's zeros; the significand shifted by them; the products of its halves; their sum; and
    that with its highest bit set.
    """
    is_normal, all_bits = x[23:31] != 0, Signal(LANE_BITS)
    m.d.comb += all_bits.eq(Cat(Const(0, 8), x[:23], is_normal))
    zeros = stage.hold(Mux(is_normal, 0, leading_zeros(all_bits)))
    counts = stage.hold((x[23:31] != 255) & (x[:31] != 0))
    significand, biased = stage.hold(Cat(x[:23], is_normal)), stage.hold(x[23:31])
    is_normal = stage.hold(is_normal)

    significand = stage.hold((significand << zeros)[:24])
    power = stage.hold(Mux(is_normal, biased + _OFFSET, 1 + _OFFSET - zeros)[:9])
    counts = stage.hold(counts)

    low, high = significand[:12], significand[12:]
    products = [stage.hold(product) for product in (low * low, low * high, high * high)]
    power, counts = stage.hold(power), stage.hold(counts)

    product = stage.hold((Cat(products[0], products[2]) + Cat(Const(0, 13), products[1]))[:48])
    power, counts = stage.hold(power), stage.hold(counts)

    top = product[47]
    normal = Mux(top, Cat(Const(0, 5), product), Cat(Const(0, 6), product))[:SIGNIFICAND_BITS]
    return Double(
        stage.hold(Mux(counts, normal, 0)), stage.hold(Mux(counts, Cat(top, power), 0)[:EXPONENT_BITS])
    )


class Halves(NamedTuple):
    """The first half of a sum."""

    large: Value
    exponent: Value
    raised: Value
    """The exponent if the sum has one bit more."""
    exact: Value
    """The smaller number, shifted to the larger one, and all bits below."""

    @classmethod
    def of(cls, bits: Value) -> Halves:
        """Return the parts of a register."""
        end = SIGNIFICAND_BITS + EXPONENT_BITS
        return cls(
            bits[:SIGNIFICAND_BITS],
            bits[SIGNIFICAND_BITS:end],
            bits[end : end + EXPONENT_BITS],
            bits[end + EXPONENT_BITS :],
        )


def distance(a: Value, b: Value) -> Value:
    """Return whether the exponent ``a`` is below ``b``, and how far they are from each other, 63 at most."""
    forth, back = a - b, b - a
    swaps = forth[-1]
    gap = Mux(swaps, back, forth)[:EXPONENT_BITS]
    return Cat(swaps, gap[:6] | gap[6:].any().replicate(6))


def _ahead(a: Value, b: Value, is_made: Value, halves: Halves, carry: Value) -> Value:
    """Return the ``distance`` of exponents a stage ahead of their sum, because it takes as long as the rest.

    The second number is one that waits, or is just made: rounded from its ``halves``, with or without carry.
    """
    made = Mux(carry, distance(a, halves.raised), distance(a, halves.exponent))
    return Mux(is_made, made, distance(a, b))


def aligned(m: Module, a: Double, b: Double, swaps_and_gap: Value) -> Value:
    """Return the bits of the ``Halves`` of a sum, whose exponents have this ``distance``."""
    swaps, gap = swaps_and_gap[0], swaps_and_gap[1:]
    large, small = Signal(SIGNIFICAND_BITS), Signal(SIGNIFICAND_BITS)
    exponent, exact = Signal(EXPONENT_BITS), Signal(2 * SIGNIFICAND_BITS + 3)
    m.d.comb += [
        large.eq(Mux(swaps, b.significand, a.significand)),
        small.eq(Mux(swaps, a.significand, b.significand)),
        exponent.eq(Mux(swaps, b.exponent, a.exponent)),
        exact.eq(Cat(Const(0, SIGNIFICAND_BITS + 3), small) >> gap),
    ]
    return Cat(large, exponent, (exponent + 1)[:EXPONENT_BITS], exact)


def rounded(m: Module, halves: Halves) -> tuple[Value, Value]:
    """Return a sum from its ``Halves``, rounded to nearest even, and whether its exponent is ``raised``.

    The sum and the next larger number are found at once, so that rounding is a choice.
    """
    exact = halves.exact
    lost, rest, guard = (
        exact[: SIGNIFICAND_BITS + 1].any(),
        exact[SIGNIFICAND_BITS + 1],
        exact[SIGNIFICAND_BITS + 2],
    )
    large, small = halves.large, exact[SIGNIFICAND_BITS + 3 :]
    total, above = Signal(SIGNIFICAND_BITS + 1), Signal(SIGNIFICAND_BITS + 1)
    chosen, up, carry = Signal(SIGNIFICAND_BITS + 1), Signal(), Signal()
    below, one = lost | rest, Const(1, 1)
    up_without_carry = guard & (below | total[0])
    m.d.comb += [
        total.eq(large + small),
        above.eq((Cat(one, large) + Cat(one, small))[1:]),  # one more, in the same carry chain
        up.eq(Mux(total[-1], total[0] & (below | guard | total[1]), up_without_carry)),
        chosen.eq(Mux(up, above, total)),
        carry.eq(total[-1] | (above[-1] & up_without_carry)),
    ]
    significand = Mux(carry, chosen[1:], chosen[:-1])
    return Cat(significand, Mux(carry, halves.raised, halves.exponent)), carry


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

    # The word before, whose terms are aligned, and the one whose sums are written.
    aligns, aligns_opening, place = stage.hold(moves, resets=True), stage.hold(opens), stage.hold(here)
    writes, clears, place_of = half(aligns, resets=True), half(aligns_opening), half(place)
    # The sums of a block's second word are cleared while it is aligned to them.
    is_written = writes & (place_of == turn)
    begins: Value = opens
    if turns > 1:
        begins = opens | (aligns & aligns_opening) | (writes & clears & ~is_written)
    is_new = stage.hold(begins)
    for at, term in enumerate(terms):
        places, held = sums[at :: len(lanes)], Double.of(stage.hold(Cat(*term)))
        before, next_before = (
            Double.of(places[0] if turns == 1 else Mux(which == 1, places[1], places[0]))
            for which in (place, turn)
        )
        ahead = Signal(_DISTANCE_BITS)
        swaps_and_gap = stage.hold(Cat(ahead[0] & ~begins, ahead[1:]))
        before = Double(Mux(is_new, 0, before.significand), before.exponent)
        halves = Halves.of(half(aligned(m, held, before, swaps_and_gap)))
        after, carry = rounded(m, halves)
        m.d.comb += ahead.eq(_ahead(term.exponent, next_before.exponent, is_written, halves, carry))
        for other, sum_ in enumerate(places):
            with m.If(writes & (place_of == other)):
                m.d.sync += sum_.eq(after)
            with m.Elif(writes & clears):
                m.d.sync += sum_.eq(0)
    count = Signal(COUNT_BITS)
    with m.If(moves):
        m.d.sync += [
            turn.eq(Mux(here == turns - 1, 0, here + 1)),
            count.eq(Mux(opens, 0, count) + counted),
        ]
    ended = stage.hold(moves & closes, resets=True)
    closed = stage.hold(ended, resets=True)
    of_block: Value = Signal.like(count)
    with m.If(ended):
        m.d.sync += of_block.eq(count)
    for _ in range(FOLD_LATENCY - FOLD_CYCLES + 2):  # stays until the fold is there
        of_block = stage.hold(of_block)
    return *_folded(m, half(closed, resets=True), sums), of_block


_RETURNS = {"first": {6: 1, 2: 9, 1: 12}, "second": {2: 5, 0: 11}}
"""The places of the queues of operands at which sums come back, and from which step on."""


def _folded(m: Module, comes: Value, sums: list[Signal]) -> tuple[Value, Double]:
    """Return when the fold of the sums is there, and the fold: in one adder of two stages, by halves.

    First and second operands stand in a queue each, and a sum takes its place in one of them as they move up,
    so that the adder takes both from the same places in every step. A sum is there two steps after its
    operands, so that the last step waits for a cycle.
    """
    stage = Pipeline(m, Const(1))
    step, works = Signal(range(SUMS)), Signal()
    following = Mux(comes, 0, step + 1)[: len(step)]
    firsts, seconds = (
        [Signal(_BITS, name=f"{name}{at}", reset_less=True) for at in range(SUMS // 2)] for name in _RETURNS
    )
    ahead, new = Signal(_DISTANCE_BITS), Signal(_BITS)
    operands = Double.of(firsts[0]), Double.of(seconds[0])
    halves = Halves.of(stage.hold(aligned(m, *operands, stage.hold(ahead))))
    rounded_sum, carry = rounded(m, halves)
    is_last = step == SUMS - 1
    is_there = stage.hold(stage.hold(works & is_last, resets=True), resets=True)
    with m.If(comes):
        m.d.sync += [works.eq(1), step.eq(0)]
        m.d.sync += [at.eq(each) for at, each in zip([*firsts, *seconds], sums, strict=True)]
    with m.Elif(works):
        m.d.sync += [step.eq(following), works.eq(~is_last)]
    returns_second: Value = Const(0, 1)
    for queue, returns in zip((firsts, seconds), _RETURNS.values(), strict=True):
        for at, (here, above) in enumerate(zip(queue, [*queue[1:], new], strict=True)):
            moved: Value = above
            if at in returns:
                returns_here = stage.hold(following >= returns[at])
                moved = Mux(returns_here, new, above)
                if at == 0:  # the adder's second operand
                    returns_second = returns_here
            with m.If(works & ~comes):
                m.d.sync += here.eq(moved)
    a, b = (Double.of(Mux(comes, sums[at], queue[1])) for at, queue in ((0, firsts), (8, seconds)))
    is_made = returns_second & ~comes
    m.d.comb += [new.eq(rounded_sum), ahead.eq(_ahead(a.exponent, b.exponent, is_made, halves, carry))]
    return is_there, Double.of(stage.hold(new))
