"""The scales of ``quantize``: two correctly rounded quotients for a block, and a block in every cycle.

A scale is the block's largest magnitude divided by the largest code, 2^k - 1. In digits of k bits, that needs
no divider: r 2^k + d = r (2^k - 1) + (r + d), so the next digit of the quotient is the remainder r itself,
or one more. The codes are products with the inverse of the scale, which takes a subtraction for each bit.
"""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, Value

from gradwire.codecs import Quantize
from gradwire.codecs.formats.quantize import CLEARED_BITS, SMALLEST_PEAK
from gradwire.codecs.magnitude import floor_log2
from gradwire.gateware.stream import Pipeline

SIGNIFICAND_BITS = 24
SCALE_BITS = 31 - CLEARED_BITS
"""Those of a scale that may be 1."""
_NAN = 0x7FC0_0000 >> CLEARED_BITS
_SMALLEST_EXPONENT = floor_log2(SMALLEST_PEAK) + 127
_SHORT_BITS = SIGNIFICAND_BITS - CLEARED_BITS
"""Of a scale's significand."""
_STEPS = 2
"""Bits of an inverse that one stage finds."""


def scale_latency(codec: Quantize) -> int:
    """Return the stages from a block's largest magnitude to its scale and inverse."""
    return _digits(codec.largest_code.bit_length()) + 2 + SIGNIFICAND_BITS // _STEPS + 1


def scale_of(m: Module, stage: Pipeline, codec: Quantize, peak: Value) -> tuple[Value, Value]:
    """Return the registers of the scale, without its lowest bits, and of its inverse, 0 if all codes are 0.

    ``peak`` is the bits of the largest magnitude.
    """
    bits = codec.largest_code.bit_length()
    exponent = peak[23:31]
    number = Cat(Const(0, _digits(bits) * bits - SIGNIFICAND_BITS), peak[:23], Const(1, 1))
    for_each = Cat(exponent, exponent == 255, exponent < _SMALLEST_EXPONENT)
    quotient, remainder = divided(stage, number, bits)
    for _ in range(_digits(bits)):
        for_each = stage.hold(for_each)
    exponent, is_nan, is_small = for_each[:8], for_each[8], for_each[9]

    # The quotient's highest bit is one of two, and of those below its 24 the first says whether it goes up.
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
    for _ in range(SIGNIFICAND_BITS // _STEPS + 1):
        scale, is_zero = stage.hold(scale), stage.hold(is_zero)
    inverse = (twice + 1)[1:]
    power = (253 - scale[_SHORT_BITS - 1 :] + inverse[SIGNIFICAND_BITS])[:8]
    return stage.hold(scale), stage.hold(Mux(is_zero, 0, Cat(inverse[:23], power)))


def divided(stage: Pipeline, number: Value, bits: int) -> tuple[Value, Value]:
    """Return the registers of the quotient and the remainder of division by 2^bits - 1, a stage a digit."""
    remainder: Value = Const(0, bits)
    for at in reversed(range(0, len(number), bits)):
        digit, remainder = divided_digit(remainder, number[at : at + bits])
        remainder = stage.hold(remainder)
        number = stage.hold(Cat(number[:at], digit, number[at + bits :]))
    return number, remainder


def divided_digit(remainder: Value, digit: Value) -> tuple[Value, Value]:
    """Return the next digit of a quotient, and what remains."""
    bits = len(digit)
    total = remainder + digit
    wrapped = total + 1
    is_more = wrapped[bits]
    return (remainder + is_more)[:bits], Mux(is_more, wrapped, total)[:bits]


def inverted(m: Module, stage: Pipeline, mantissa: Value) -> Value:
    """Return the register of 2^40 / S, rounded down, where S is 2^15 and the mantissa.

    If the mantissa is 0, the result is 2^25 - 1.
    """
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
    """Return the next bit of a quotient, and what remains."""
    twice = Cat(Const(0, 1), rest)
    difference = Signal(len(twice) + 1)
    m.d.comb += difference.eq(twice - divisor)
    return ~difference[-1], Mux(difference[-1], twice, difference)[: len(divisor)]


def _digits(bits: int) -> int:
    """Return the digits of ``bits`` bits of a significand with room for as many and one more below it."""
    return -(-(SIGNIFICAND_BITS + bits + 1) // bits)
