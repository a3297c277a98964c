"""Sums of float32, bit-identical to a CPU's: rounded to nearest, ties to even, with subnormals."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Value
from amaranth.lib.wiring import In, Out

from gradwire_gateware import LANE_BITS
from gradwire_gateware.stream import Circuit, Pipeline, leading_zeros

LATENCY = 8
"""The number of pipeline stages of a sum."""
_INFINITY = 0x7F80_0000
_QUIET = 0x0040_0000
_INVALID = 0xFFC0_0000
"""The sum of opposite infinities on x86."""


class FloatAdder(Circuit):
    """A pipelined adder; ``sum`` is ``a + b``, ``LATENCY`` cycles of ``enable`` later."""

    def __init__(self) -> None:
        super().__init__({"a": In(LANE_BITS), "b": In(LANE_BITS), "enable": In(1), "sum": Out(LANE_BITS)})

    def _describe(self, m: Module) -> None:
        m.d.comb += self.sum.eq(float_sum(Pipeline(m, self.enable), self.a, self.b))


def float_sum(stage: Pipeline, a: Value, b: Value) -> Value:
    """Return the register of ``a + b``. The sum of two NaNs is the first one, made quiet, as on x86.

    Stages: compare the operands and compute both exponent differences; select one; shift the smaller operand;
    add; count leading zeros; shift the sum; round; and insert non-finite results. A marker bit limits the
    sum's shift to its exponent, because it counts as the sum's highest one.
    """
    kinds = stage.hold(_kinds(a, b))
    swaps = stage.hold(b[:31] > a[:31])
    gaps = [stage.hold((_power(one) - _power(other))[:8]) for one, other in ((a, b), (b, a))]
    a, b = stage.hold(a), stage.hold(b)

    is_odd, odd = stage.hold(kinds[:2].any()), stage.hold(_not_finite(a, b, kinds))
    large, small = Mux(swaps, b, a), Mux(swaps, a, b)
    sign = stage.hold(large[31])
    differs = stage.hold(a[31] ^ b[31])
    gap = Mux(swaps, gaps[1], gaps[0])
    distance = stage.hold(Mux(gap[5:].any(), 31, gap[:5]))
    power = stage.hold(_power(large))
    large, small = stage.hold(_significand(large)), stage.hold(_significand(small))

    # Three bits remain below the result; the lowest one is the sticky bit.
    exact = Cat(Const(0, 31), small) >> distance
    small = stage.hold(Cat(exact[:29].any(), exact[29:55]))
    large, power, sign, differs = (stage.hold(each) for each in (large, power, sign, differs))

    shifted = Cat(Const(0, 3), large)
    total = stage.hold(Mux(differs, shifted - small, shifted + small)[:28])
    limit = stage.hold((Const(1 << 26, 27) >> (power - 1)[:8])[:27])
    power, sign, differs = stage.hold(power), stage.hold(sign), stage.hold(differs)

    left = stage.hold(leading_zeros(Cat(Const(0, 5), total[:27] | limit)))
    sign = stage.hold(sign & ~(differs & (total == 0)))
    total, power = stage.hold(total), stage.hold(power)

    normal = (total << left)[:27]
    has_carry = total[27]
    rounded = stage.hold(Mux(has_carry, Cat(total[:2].any(), total[2:28]), normal))
    exponent = Mux(has_carry, power + 1, Mux(normal[26], power - left, 0))[:8]
    exponent, sign = stage.hold(exponent), stage.hold(sign)

    up = rounded[2] & (rounded[:2].any() | rounded[3])
    finite = (Cat(rounded[3:26], exponent) + up)[:31]
    magnitude = stage.hold(Mux(exponent == 255, _INFINITY, finite))
    sign = stage.hold(sign)
    is_odd, odd = stage.delay(is_odd, LATENCY - 3), stage.delay(odd, LATENCY - 3)
    return stage.hold(Mux(is_odd, odd, Cat(magnitude[:31], sign)))


def _kinds(a: Value, b: Value) -> Value:
    """Return whether ``a`` and ``b`` are non-finite, and whether each is NaN."""
    has_most = [x[23:31] == 255 for x in (a, b)]
    return Cat(*has_most, *(most & x[:23].any() for x, most in zip((a, b), has_most, strict=True)))


def _not_finite(a: Value, b: Value, kinds: Value) -> Value:
    """Return the sum if ``a`` or ``b`` is NaN or infinite."""
    a_is_odd, b_is_odd, a_is_nan, b_is_nan = kinds
    infinite = Mux(a_is_odd, a, b)
    sum_of_numbers = Mux(a_is_odd & b_is_odd & (a[31] ^ b[31]), _INVALID, infinite)
    return Mux(a_is_nan, a | _QUIET, Mux(b_is_nan, b | _QUIET, sum_of_numbers))


def _power(x: Value) -> Value:
    """Return the biased exponent, 1 for subnormals."""
    return Cat(x[23] | (x[23:31] == 0), x[24:31])


def _significand(x: Value) -> Value:
    return Cat(x[:23], x[23:31] != 0)
