"""The codes of ``quantize``: products that are rounded as a CPU rounds them, both ways."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, Value

from gradwire.gateware.quantize.scale import SIGNIFICAND_BITS
from gradwire.gateware.stream import Pipeline, leading_zeros

_HALF = SIGNIFICAND_BITS // 2
_QUIET_NAN = 0x7FC0_0000
CODE_LATENCY = 6
"""The stages from a float32 and an inverse to a code."""
VALUE_LATENCY = 6
"""The stages from a code and a scale to a float32."""


def code_of(stage: Pipeline, x: Value, inverse: Value, bits: int) -> Value:
    """Return the register of the code of a float32, ``CODE_LATENCY`` stages after it and the inverse."""
    product, place, is_zero = multiplied(stage, x, inverse)
    return rounded(stage, product, place, is_zero, stage.hold(stage.hold(x[31])), bits)


def multiplied(stage: Pipeline, x: Value, inverse: Value) -> tuple[Value, Value, Value]:
    """Return the registers of the product of significands, its place, and if the code is 0, two stages later.

    Bit 46 of the product stands for 2^(place - 2). Below that of place 0, the code is 0.
    """
    exponents = x[23:31] + inverse[23:31]
    lowest = 2 * 127 - 2
    is_zero = stage.hold((x[23:31] == 0) | (inverse[23:31] == 0) | (exponents < lowest))
    place = stage.hold((exponents - lowest)[:4])
    significand, factor = Cat(x[:23], Const(1, 1)), Cat(inverse[:23], Const(1, 1))
    product = multiplication(stage, significand, factor)
    return product, stage.hold(place), stage.hold(is_zero)


def multiplication(stage: Pipeline, a: Value, b: Value) -> Value:
    """Return the register of a product, two stages later: of parts as large as a DSP's, which are added."""
    parts = [
        (stage.hold(a[at : at + _HALF] * b[other : other + _HALF]), at + other)
        for at in range(0, len(a), _HALF)
        for other in range(0, len(b), _HALF)
    ]
    return stage.hold(sum((part << at for part, at in parts), Const(0, 1))[: len(a) + len(b)])


def rounded(stage: Pipeline, product: Value, place: Value, is_zero: Value, sign: Value, bits: int) -> Value:
    """Return the register of the code, four stages later: a float32 is rounded first, and then that."""
    is_high = product[-1]
    kept = Mux(is_high, product[SIGNIFICAND_BITS - 1 :], product[SIGNIFICAND_BITS - 2 : -1])
    below = product[: SIGNIFICAND_BITS - 2].any() | (is_high & product[SIGNIFICAND_BITS - 2])
    up, kept = stage.hold(kept[0] & (below | kept[1])), stage.hold(kept[1:])
    place = stage.hold((place + is_high)[:4])
    is_zero, sign = stage.hold(is_zero), stage.hold(sign)

    value = stage.hold((kept + up)[: SIGNIFICAND_BITS + 1])
    shift = stage.hold((place - 1)[: bits.bit_length() - 1])
    is_zero, sign = stage.hold(is_zero | (place == 0)), stage.hold(sign)

    exact = (value << shift)[: SIGNIFICAND_BITS + bits - 1]
    whole, half = stage.hold(exact[SIGNIFICAND_BITS:]), stage.hold(exact[SIGNIFICAND_BITS - 1])
    below = stage.hold(exact[: SIGNIFICAND_BITS - 1].any())
    is_zero, sign = stage.hold(is_zero), stage.hold(sign)

    magnitude = Mux(is_zero, 0, (whole + (half & (below | whole[0])))[: bits - 1])
    return stage.hold(Mux(sign, -Cat(magnitude, Const(0, 1)), magnitude)[:bits])


def value_of(m: Module, stage: Pipeline, code: Value, scale: Value) -> Value:
    """Return the register of code times scale, a float32, ``VALUE_LATENCY`` stages later.

    Scales that no encoder writes may give products that are rounded, subnormal or infinite.
    """
    bits = len(code)
    is_normal = stage.hold(scale[23:31] != 0)
    sign, scale = stage.hold(code[-1]), stage.hold(scale)
    magnitude = stage.hold(Mux(code[-1], -code, code)[: bits - 1])

    product = multiplication(stage, magnitude, Cat(scale[:23], is_normal))
    power, is_nan = stage.hold(Cat(scale[23] | ~is_normal, scale[24:31])), stage.hold(scale[23:31].all())
    sign = stage.hold(sign)
    power, is_nan, sign = stage.hold(power), stage.hold(is_nan), stage.hold(sign)

    # The highest bit of a normal product is one of the upper ones; without one, the float32 is subnormal.
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
