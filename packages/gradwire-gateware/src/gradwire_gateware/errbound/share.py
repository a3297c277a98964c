"""The exponent of a relative bound, computed from a block's number of values and sum of squares.

The CPU computes share * sqrt(sum / count) in double precision, and rounds three times. Every step is
monotone, so the result is at least 2^k exactly if the sum is at least count * M * 4^k, where M is a constant
of the share. So the hardware needs no division.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.memory import Memory

from gradwire.codecs import ErrBound
from gradwire_gateware import LANE_BITS
from gradwire_gateware.stream import Pipeline, leading_zeros

# The sum of a block's squares in double precision, bit-identical to the CPU's: sixteen partial sums, which
# are then added pairwise.
#
# One adder processes one value per cycle. The adder returns to a partial sum every sixteen cycles, so an
# addition may have sixteen stages. All terms are positive, so no search for the highest bit is needed. A sum
# is a significand of 53 bits, 0 or with its highest bit set, times 2^(exponent - ``BIAS``).

SIGNIFICAND_BITS = 53
EXPONENT_BITS = 10
BIAS = 370
SUMS = 16
_SQUARED = 5
"""The number of pipeline stages of a square."""
_ADDED = 6
"""The number of pipeline stages of an addition."""
COUNT_BITS = 17
"""The number of bits of a block's number of values, which is at most 65536."""
_OFFSET = 32
"""An offset that keeps the exponents of normalised subnormals positive."""
_BITS = SIGNIFICAND_BITS + EXPONENT_BITS
_LAST_ROUND = 9


class Double(NamedTuple):
    """A non-negative number with significand and exponent."""

    significand: Value
    exponent: Value

    @classmethod
    def of(cls, bits: Value) -> Double:
        """Return the number in a register's bits."""
        return cls(bits[:SIGNIFICAND_BITS], bits[SIGNIFICAND_BITS:_BITS])


def squared(m: Module, stage: Pipeline, x: Value) -> Double:
    """Return the registers of the square of a float32, five stages later, or 0 if the float isn't finite."""
    is_normal, all_bits = x[23:31] != 0, Signal(LANE_BITS)
    m.d.comb += all_bits.eq(Cat(Const(0, 8), x[:23], is_normal))
    zeros = stage.hold(Mux(is_normal, 0, leading_zeros(all_bits)))
    counts = stage.hold((x[23:31] != 255) & (x[:31] != 0))
    significand = stage.hold(Cat(x[:23], is_normal))
    biased, is_normal = stage.hold_all(x[23:31], is_normal)

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


def distance(a: Value, b: Value) -> Value:
    """Return whether exponent ``a`` is below ``b``, and their absolute difference, at most 63."""
    forth, back = a - b, b - a
    swaps = forth[-1]
    gap = Mux(swaps, back, forth)[:EXPONENT_BITS]
    return Cat(swaps, gap[:6] | gap[6:].any().replicate(6))


def added(stage: Pipeline, a: Double, b: Double) -> Value:
    """Return the bits of a sum, rounded to nearest even, ``_ADDED`` stages later.

    Stages: the operands; their exponent difference; the larger operand; two stages for the shift of the
    smaller operand; and the sum and its successor, so that rounding is a selection.
    """
    a, b = (Double.of(stage.hold(Cat(*each))) for each in (a, b))
    swaps_and_gap = stage.hold(distance(a.exponent, b.exponent))
    a, b = (Double.of(stage.hold(Cat(*each))) for each in (a, b))
    swaps, gap = swaps_and_gap[0], stage.hold(swaps_and_gap[1:])
    large = stage.hold(Mux(swaps, b.significand, a.significand))
    small = stage.hold(Mux(swaps, a.significand, b.significand))
    exponent = stage.hold(Mux(swaps, b.exponent, a.exponent))

    below = Const(0, SIGNIFICAND_BITS + 3)
    exact = stage.hold((Cat(below, small) >> Cat(Const(0, 3), gap[3:]))[: SIGNIFICAND_BITS + len(below)])
    large, exponent, gap = stage.hold(large), stage.hold(exponent), stage.hold(gap[:3])
    exact = stage.hold((exact >> gap)[: len(exact)])
    large, exponent = stage.hold(large), stage.hold(exponent)

    one, small = Const(1, 1), exact[len(below) :]
    total = stage.hold((large + small)[: SIGNIFICAND_BITS + 1])
    above = stage.hold((Cat(one, large) + Cat(one, small))[1 : SIGNIFICAND_BITS + 2])  # the sum plus 1
    guard, below = stage.hold(exact[len(below) - 1]), stage.hold(exact[: len(below) - 1].any())
    exponent, raised = stage.hold(exponent), stage.hold((exponent + 1)[:EXPONENT_BITS])
    up_without_carry = guard & (below | total[0])
    up = Mux(total[-1], total[0] & (below | guard | total[1]), up_without_carry)
    chosen = Mux(up, above, total)
    carry = total[-1] | (above[-1] & up_without_carry)
    return Cat(Mux(carry, chosen[1:], chosen[:-1]), Mux(carry, raised, exponent))


def summed(m: Module, word: Value, is_last: Value, begins: Value) -> tuple[Value, Value, Double]:
    """Return the signals of a consumed next word and of a valid sum of squares, and the sum.

    The first word must be valid in the cycle of ``begins``. Each following word must be valid ``LANE_BITS`` /
    4 cycles after the previous word was consumed. The block ends with the word marked ``is_last``.

    A pass has one cycle per partial sum. After the passes over values, four passes add partial sums pairwise,
    with an idle pass between two such passes, in which additions complete.
    """
    stage, lanes = Pipeline(m, Const(1)), len(word) // LANE_BITS
    works, index, turn = Signal(), Signal(range(SUMS)), Signal(range(_LAST_ROUND + 1))
    is_first, is_over, half = Signal(), Signal(), Signal(SUMS.bit_length() - 1, init=SUMS // 2)
    lane, is_term, ends = index[: (lanes - 1).bit_length()], turn == 0, index == SUMS - 1
    takes, found = Signal(), Signal()
    m.d.comb += [
        takes.eq(works & is_term & ~is_over & (lane == lanes - 1)),
        found.eq(works & (turn == _LAST_ROUND) & (index == half)),
    ]
    m.d.sync += index.eq(index + 1)
    with m.If(takes & is_last):
        m.d.sync += is_over.eq(1)
    with m.If(works & ends):
        m.d.sync += is_first.eq(0)
        with m.If(~is_term | is_over | (takes & is_last)):
            m.d.sync += turn.eq(turn + 1)
        with m.If(~is_term & ~turn[0]):
            m.d.sync += half.eq(half.rotate_right(1))
    with m.If(found):
        m.d.sync += works.eq(0)
    with m.If(begins):
        m.d.sync += [works.eq(1), index.eq(0), turn.eq(0), is_first.eq(1), is_over.eq(0)]

    x = stage.hold(word.word_select(lane, LANE_BITS) & ~is_over.replicate(LANE_BITS))
    marks = Cat(is_term, is_first, works & ~turn[0], index, half)
    marks, found = stage.delay(marks, 1 + _SQUARED), stage.delay(found, 1 + _SQUARED, resets=True)
    is_term, is_first, is_added = marks[:3]
    index, half = marks[3 : 3 + len(index)], marks[3 + len(index) :]

    m.submodules.sums = sums = Memory(shape=_BITS, depth=SUMS, init=[])
    put, own, other = sums.write_port(), sums.read_port(domain="comb"), sums.read_port(domain="comb")
    m.d.comb += [own.addr.eq(index), other.addr.eq(index ^ half)]
    term = Mux(is_term, Cat(*squared(m, stage, x)), other.data)
    m.d.comb += put.data.eq(added(stage, Double.of(term), Double.of(Mux(is_term & is_first, 0, own.data))))
    index, is_added = stage.delay(index, _ADDED), stage.delay(is_added, _ADDED, resets=True)
    m.d.comb += [put.addr.eq(index), put.en.eq(is_added)]
    return takes, stage.hold(found, resets=True), Double.of(stage.hold(other.data))


_LEAST_BITS = SIGNIFICAND_BITS + 1


class Least(NamedTuple):
    """The smallest square of a single value for which a bound is at least 1: significand * 2^power."""

    significand: int
    power: int
    is_enough: bool
    """Whether equality with this sum is enough; otherwise, a larger sum is needed."""

    @classmethod
    def of(cls, codec: ErrBound) -> Least:
        """Return the smallest sum for a codec's share."""
        share: float = struct.unpack("<f", struct.pack("<f", codec.relative))[0]
        root = _least(1.0 / share, lambda value: share * value >= 1.0)
        square = _least(root * root, lambda value: math.sqrt(value) >= root)
        middle = (Fraction(square) + Fraction(math.nextafter(square, 0.0))) / 2
        mantissa = int(math.frexp(square)[0] * 2**SIGNIFICAND_BITS)
        power = math.frexp(square)[1] - _LEAST_BITS
        if middle < Fraction(2) ** (_LEAST_BITS - 1 + power):
            power -= 1
        return cls(int(middle / Fraction(2) ** power), power, mantissa % 2 == 0)


def _least(near: float, is_enough: object) -> float:
    """Return the smallest double for which ``is_enough`` is true, searching from ``near``."""
    assert callable(is_enough)
    while is_enough(near):
        near = math.nextafter(near, 0.0)
    while not is_enough(near):
        near = math.nextafter(near, math.inf)
    return near


def normal_count(stage: Pipeline, count: Value, least: Least) -> tuple[Value, Value]:
    """Return the registers of count * M, normalised, and of the exponent's correction."""
    zeros = stage.hold(leading_zeros(Cat(Const(0, 32 - COUNT_BITS), count)))
    count = stage.hold(count)
    count, zeros = stage.hold((count << zeros)[:COUNT_BITS]), stage.hold(zeros)
    third = _LEAST_BITS // 3
    thirds = [(least.significand >> at) & (2**third - 1) for at in range(0, _LEAST_BITS, third)]
    low, middle, high = (stage.hold(count * Const(part, third)) for part in thirds)
    zeros = stage.hold(zeros)
    product = stage.hold(
        (low + Cat(Const(0, third), middle) + Cat(Const(0, 2 * third), high))[: COUNT_BITS + _LEAST_BITS]
    )
    zeros = stage.hold(zeros)
    top = product[-1]
    return stage.hold(Mux(top, product, Cat(0, product[:-1]))), stage.hold((zeros + ~top)[:6])


def exponent_of(stage: Pipeline, total: Double, wanted: Value, shift: Value, least: Least) -> Value:
    """Return the register of the biased exponent of the bound, two stages after the sum."""
    bits = len(wanted)
    have = Cat(Const(0, bits - SIGNIFICAND_BITS), total.significand)
    reaches = stage.hold(have >= wanted if least.is_enough else have > wanted)
    # Twice the exponent of the bound, with an offset that keeps it positive.
    offset = -BIAS - (bits - SIGNIFICAND_BITS) - least.power + 2 * 512
    twice = stage.hold((total.exponent + shift + offset)[:12])
    is_zero = stage.hold(total.significand == 0)
    power = ((twice - ~reaches)[:12] >> 1)[:11]
    least_power, most_power = 512 - 126, 512 + 126
    low = is_zero | (power < least_power)
    clipped = Mux(low, 1, Mux(power > most_power, 253, power - (512 - 127)))
    return stage.hold(clipped[:8])


# The format of ``errbound``, shared by its compressor and decompressor.


class Steps(NamedTuple):
    """The quantization steps of a bound, as numbers or as signals."""

    exponent: int | Value
    """The biased exponent of the bound."""
    limits: tuple[int, int] | tuple[Value, Value]
    """The largest codes that have one byte and two bytes."""

    @classmethod
    def of(cls, codec: ErrBound) -> Steps:
        """Return the steps of a codec with an absolute bound."""
        (exponent, *_) = codec.compiled[1]
        overflow = 1 << (254 - exponent) if exponent > 238 else 1 << 16
        return cls(exponent, (min(127, overflow - 1), min(32767, overflow - 1)))
