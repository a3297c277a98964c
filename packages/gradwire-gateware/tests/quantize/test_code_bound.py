"""How far a code is from the product that it rounds, and a float32 from the product that it is."""

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from amaranth import Cat, Const, Module, Mux

from gradwire.codecs import Quantize
from gradwire.codecs.quantize import CLEARED_BITS, SMALLEST_PEAK
from gradwire_gateware.quantize.code import multiplication, rounded, value_of
from support.proofs import Claim, Wires, counterexample, scaled

HALF = Fraction(1, 2) + Fraction(1, 2**17)
"""Of a step: what rounding loses, which happens twice."""


class CodeIsNear(Claim):
    """For all products of which no code is too large."""

    def __init__(self, bits: int, steps: Fraction) -> None:
        super().__init__()
        self._bits, self._steps = bits, int(steps * 2**48)
        self._product, self._place = self.given("product", 47), self.given("place", 4)
        self._is_high, self._sign = self.given("is_high", 1), self.given("sign", 1)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        product = Mux(self._is_high, Cat(self._product, 1), Cat(self._product[:46], 1, 0))
        code = rounded(Wires(m), product, self._place, Const(0, 1), self._sign, self._bits)
        exact = (product << self._place)[: 48 + self._bits + 1]
        is_encoded = (self._place <= self._bits) & (exact < (2**self._bits - 1 << 47) - 2**32)
        found = Cat(Const(0, 48), Mux(self._sign, -code, code)[: self._bits])
        error = Mux(found > exact, found - exact, exact - found)
        right_sign = (code[-1] == self._sign) | (code == 0)
        m.d.comb += self.holds.eq(~is_encoded | ((error <= self._steps) & right_sign))
        return m


class ValueIsExact(Claim):
    """For all codes and scales that an encoder writes; ``test_code.py`` tests the product of integers."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self._bits = bits
        self._code, self._scale = self.given("code", bits), self.given("scale", 31 - CLEARED_BITS)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m, bits, code = Module(), self._bits, self._code
        wires = Wires(m)
        scale = Cat(Const(0, CLEARED_BITS), self._scale)
        y = value_of(m, wires, code, scale)
        magnitude = Mux(code[-1], -code, code)[: bits - 1]
        exponent = scale[23:31]
        found, lost = scaled(wires, y, exponent + bits - 1, bits - 1)
        product = multiplication(wires, magnitude, Cat(scale[:23], Const(1, 1)))
        is_exact = (found == product) & ~lost & (y[31] == code[-1])
        is_written = (exponent >= 20) & (exponent < 254 - bits) & (code != 1 << (bits - 1))
        m.d.comb += self.holds.eq(~is_written | is_exact)
        return m


@pytest.mark.parametrize("bits", [8, 4])
def test_a_code_is_within_half_a_step(bits: int, tmp_path: Path) -> None:
    assert counterexample(CodeIsNear(bits, HALF), tmp_path) is None


def test_exactly_half_a_step_is_refuted(tmp_path: Path) -> None:
    assert counterexample(CodeIsNear(8, Fraction(1, 2)), tmp_path) is not None


@pytest.mark.parametrize("bits", [8, 4])
def test_a_value_is_exactly_its_code_times_its_scale(bits: int, tmp_path: Path) -> None:
    assert counterexample(ValueIsExact(bits), tmp_path) is None


@pytest.mark.parametrize("bits", [8, 4])
def test_together_no_error_exceeds_the_bound(bits: int) -> None:
    codec = Quantize(bits)
    bound = Fraction(codec.bound(torch.tensor([1.0]))) - Fraction(SMALLEST_PEAK)
    steps = codec.largest_code * (1 + Fraction(1, 2**14))  # of |x|, whose scale is at most 2^-15 too small
    scale = Fraction(1, codec.largest_code)
    assert scale * (HALF + steps * Fraction(1, 2**24)) <= bound  # an inverse is off by 2^-24 of itself
