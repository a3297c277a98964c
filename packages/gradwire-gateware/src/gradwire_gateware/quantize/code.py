"""The scales, codes, and values of ``quantize``, with the same rounding as on a CPU."""

from __future__ import annotations

from typing import NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, Value

from gradwire.codecs import Quantize
from gradwire.codecs.base import floor_log2
from gradwire.codecs.quantize import CLEARED_BITS, SMALLEST_PEAK
from gradwire_gateware import LANE_BITS
from gradwire_gateware.stream import Pipeline, leading_zeros

# The scales of ``quantize``: two correctly rounded quotients per block, at one block per cycle.
#
# A scale is the block's largest magnitude divided by the largest code, 2^k - 1. In digits of k bits, that
# needs no divider: r 2^k + d = r (2^k - 1) + (r + d), so the next digit of the quotient is the remainder r
# itself, or r + 1. The codes are products with the inverse of the scale. The inverse needs a subtraction for
# each bit.

SIGNIFICAND_BITS = 24
SCALE_BITS = 31 - CLEARED_BITS
"""The number of bits of a scale above its cleared bits, without the sign."""
_NAN = 0x7FC0_0000 >> CLEARED_BITS
_SMALLEST_EXPONENT = floor_log2(SMALLEST_PEAK) + 127
_SHORT_BITS = SIGNIFICAND_BITS - CLEARED_BITS
"""The bits of a scale's significand."""
_STEPS = 2
"""The number of bits of an inverse that are computed per stage."""


def scale_latency(codec: Quantize) -> int:
    """Return the number of stages from a block's largest magnitude to its scale and inverse."""
    return _digits(codec.largest_code.bit_length()) + 2 + SIGNIFICAND_BITS // _STEPS + 1


def scale_of(m: Module, stage: Pipeline, codec: Quantize, peak: Value) -> tuple[Value, Value]:
    """Return the registers of a scale, without cleared bits, and of its inverse, 0 if all codes are 0."""
    bits = codec.largest_code.bit_length()
    exponent = peak[23:31]
    number = Cat(Const(0, _digits(bits) * bits - SIGNIFICAND_BITS), peak[:23], Const(1, 1))
    for_each = Cat(exponent, exponent == 255, exponent < _SMALLEST_EXPONENT)
    quotient, remainder = divided(stage, number, bits)
    for_each = stage.delay(for_each, _digits(bits))
    exponent, is_nan, is_small = for_each[:8], for_each[8], for_each[9]

    # The quotient's highest 1 is in one of two places; the bit below its 24 highest bits decides the
    # rounding.
    high = len(number) - bits
    whole, half, below = (
        Mux(quotient[high], quotient[high - 23 :], quotient[high - 24 :])[:SIGNIFICAND_BITS],
        Mux(quotient[high], quotient[high - 24], quotient[high - 25]),
        quotient[: high - 25].any() | (quotient[high] & quotient[high - 25]) | (remainder != 0),
    )
    up = half & (below | whole[0])
    rounded = (Cat(whole[:23], (exponent - bits + quotient[high])[:8]) + up)[CLEARED_BITS:31]
    scale = stage.hold(Mux(is_nan, _NAN, Mux(is_small, 0, rounded)))
    is_zero = stage.hold(is_nan | is_small)

    twice = inverted(m, stage, scale[: _SHORT_BITS - 1])
    scale, is_zero = (stage.delay(each, SIGNIFICAND_BITS // _STEPS + 1) for each in (scale, is_zero))
    inverse = (twice + 1)[1:]
    power = (253 - scale[_SHORT_BITS - 1 :] + inverse[SIGNIFICAND_BITS])[:8]
    return stage.hold(scale), stage.hold(Mux(is_zero, 0, Cat(inverse[:23], power)))


def divided(stage: Pipeline, number: Value, bits: int) -> tuple[Value, Value]:
    """Return the registers of quotient and remainder of division by 2^bits - 1, one stage per digit."""
    remainder: Value = Const(0, bits)
    for at in reversed(range(0, len(number), bits)):
        digit, remainder = divided_digit(remainder, number[at : at + bits])
        remainder = stage.hold(remainder)
        number = stage.hold(Cat(number[:at], digit, number[at + bits :]))
    return number, remainder


def divided_digit(remainder: Value, digit: Value) -> tuple[Value, Value]:
    """Return the next digit of a quotient, and the remainder."""
    bits = len(digit)
    total = remainder + digit
    wrapped = total + 1
    is_more = wrapped[bits]
    return (remainder + is_more)[:bits], Mux(is_more, wrapped, total)[:bits]


def inverted(m: Module, stage: Pipeline, mantissa: Value) -> Value:
    """Return the register of 2^40 / S, rounded down, or 2^25 - 1 for S = 2^15, S being 2^15 + mantissa."""
    divisor = Cat(mantissa, Const(1, 1))
    rest, quotient = stage.hold((-divisor)[: len(divisor)]), Const(1, 1)
    divisor = stage.hold(divisor)
    for _ in range(SIGNIFICAND_BITS // _STEPS):
        for _ in range(_STEPS):
            bit, rest = divided_bit(m, rest, divisor)
            quotient = Cat(bit, quotient)
        rest, quotient, divisor = stage.hold(rest), stage.hold(quotient), stage.hold(divisor)
    return quotient


def divided_bit(m: Module, rest: Value, divisor: Value) -> tuple[Value, Value]:
    """Return the next bit of a quotient, and the remainder."""
    twice = Cat(Const(0, 1), rest)
    difference = Signal(len(twice) + 1)
    m.d.comb += difference.eq(twice - divisor)
    return ~difference[-1], Mux(difference[-1], twice, difference)[: len(divisor)]


def _digits(bits: int) -> int:
    """Return the number of digits of ``bits`` bits for a significand and ``bits + 1`` bits below it."""
    return -(-(SIGNIFICAND_BITS + bits + 1) // bits)


_HALF = SIGNIFICAND_BITS // 2
_QUIET_NAN = 0x7FC0_0000
CODE_LATENCY = 6
"""The number of stages from a float32 and an inverse to a code."""
VALUE_LATENCY = 6
"""The number of stages from a code and a scale to a float32."""


def code_of(stage: Pipeline, x: Value, inverse: Value, bits: int) -> Value:
    """Return the register of a float32's code, ``CODE_LATENCY`` stages after the float and the inverse."""
    product, place, is_zero = multiplied(stage, x, inverse)
    return rounded(stage, product, place, is_zero, stage.delay(x[31], 2), bits)


def multiplied(stage: Pipeline, x: Value, inverse: Value) -> tuple[Value, Value, Value]:
    """Return the registers of the product of significands, its ``place``, and whether the code is 0.

    Two stages later, bit 46 has the weight 2^(place - 2); a negative place would be the code 0.
    """
    exponents = x[23:31] + inverse[23:31]
    lowest = 2 * 127 - 2
    is_zero = stage.hold((x[23:31] == 0) | (inverse[23:31] == 0) | (exponents < lowest))
    place = stage.hold((exponents - lowest)[:4])
    significand, factor = Cat(x[:23], Const(1, 1)), Cat(inverse[:23], Const(1, 1))
    product = multiplication(stage, significand, factor)
    return product, stage.hold(place), stage.hold(is_zero)


def multiplication(stage: Pipeline, a: Value, b: Value) -> Value:
    """Return the register of a product, two stages later, computed as a sum of products of a DSP's width."""
    parts = [
        (stage.hold(a[at : at + _HALF] * b[other : other + _HALF]), at + other)
        for at in range(0, len(a), _HALF)
        for other in range(0, len(b), _HALF)
    ]
    return stage.hold(sum((part << at for part, at in parts), Const(0, 1))[: len(a) + len(b)])


def rounded(stage: Pipeline, product: Value, place: Value, is_zero: Value, sign: Value, bits: int) -> Value:
    """Return the register of the code, rounded to float32 and then to an integer, four stages later."""
    is_high = product[-1]
    kept = Mux(is_high, product[SIGNIFICAND_BITS - 1 :], product[SIGNIFICAND_BITS - 2 : -1])
    below = product[: SIGNIFICAND_BITS - 2].any() | (is_high & product[SIGNIFICAND_BITS - 2])
    up = stage.hold(kept[0] & (below | kept[1]))
    kept, place = stage.hold(kept[1:]), stage.hold((place + is_high)[:4])
    is_zero, sign = stage.hold_all(is_zero, sign)

    value = stage.hold((kept + up)[: SIGNIFICAND_BITS + 1])
    shift = stage.hold((place - 1)[: bits.bit_length() - 1])
    is_zero, sign = stage.hold_all(is_zero | (place == 0), sign)

    exact = (value << shift)[: SIGNIFICAND_BITS + bits - 1]
    whole = stage.hold(exact[SIGNIFICAND_BITS:])
    half = stage.hold(exact[SIGNIFICAND_BITS - 1])
    below = stage.hold(exact[: SIGNIFICAND_BITS - 1].any())
    is_zero, sign = stage.hold(is_zero), stage.hold(sign)

    magnitude = Mux(is_zero, 0, (whole + (half & (below | whole[0])))[: bits - 1])
    return stage.hold(Mux(sign, -Cat(magnitude, Const(0, 1)), magnitude)[:bits])


def value_of(m: Module, stage: Pipeline, code: Value, scale: Value) -> Value:
    """Return the register of code times scale, even if not normal, ``VALUE_LATENCY`` stages later."""
    bits = len(code)
    is_normal, sign, scale = stage.hold_all(scale[23:31] != 0, code[-1], scale)
    magnitude = stage.hold(Mux(code[-1], -code, code)[: bits - 1])

    product = multiplication(stage, magnitude, Cat(scale[:23], is_normal))
    power = stage.hold(Cat(scale[23] | ~is_normal, scale[24:31]))
    is_nan, sign = stage.hold(scale[23:31].all()), stage.hold(sign)
    power, is_nan, sign = stage.hold(power), stage.hold(is_nan), stage.hold(sign)

    # A normal product has its highest 1 among the upper bits; otherwise, the float32 is subnormal.
    zeros = stage.hold(leading_zeros(product[SIGNIFICAND_BITS - 1 :]))
    product, power, is_nan, sign = (stage.hold(each) for each in (product, power, is_nan, sign))

    exact = (product << zeros)[: len(product)]
    exponent = stage.hold(Mux(exact[-1], power + (bits - 1) - zeros, 0)[:9])
    exact, is_nan, sign = stage.hold(exact), stage.hold(is_nan), stage.hold(sign)

    low = bits - 1
    up = exact[low - 1] & (exact[: low - 1].any() | exact[low])
    finite = Signal(32)
    m.d.comb += finite.eq(Cat(exact[low:][:23], exponent) + up)
    magnitude = Mux(finite[23:31].all() | finite[31], 255 << 23, finite[:31])
    return stage.hold(Mux(is_nan, _QUIET_NAN, Cat(magnitude[:31], sign)))


# The format of ``quantize``, shared by its compressor and decompressor.

SCALE_NBYTES = 4
"""The size of a scale, a float32."""


class QuantizeLayout(NamedTuple):
    """The layout of a ``quantize`` codec's chunks in a stream's words."""

    bits: int
    """The number of bits of a code."""
    block: int
    lanes: int
    chunk_words: int
    """The number of float32 words in the largest chunk."""

    @classmethod
    def of(cls, codec: Quantize, width: int, chunk_words: int) -> QuantizeLayout:
        """Return a codec's layout, in which every block is a whole number of words."""
        return cls(codec.bits, codec.block, width // LANE_BITS, chunk_words)

    @property
    def words(self) -> int:
        """The number of float32 words in the largest block of a chunk."""
        return min(self.block // self.lanes, self.chunk_words)

    @property
    def most_values(self) -> int:
        """The number of values in the largest chunk."""
        return self.chunk_words * self.lanes

    @property
    def nbytes(self) -> int:
        """The number of bytes of the codes of one float32 word."""
        return self.lanes * self.bits // 8

    @property
    def most_scales_nbytes(self) -> int:
        """The number of bytes of the scales of the largest chunk."""
        return SCALE_NBYTES * -(-self.most_values // self.block)

    @property
    def most_codes_nbytes(self) -> int:
        """The number of bytes of the codes of the largest chunk."""
        return self.chunk_words * self.nbytes

    def words_of(self, nbytes: int) -> int:
        """Return the number of words for ``nbytes`` bytes."""
        return -(-nbytes * 8 // (self.lanes * LANE_BITS))
