"""How far a scale and its inverse are from exact ones, for all mantissas."""

from pathlib import Path

import pytest
from amaranth import Cat, Const, Module, Mux

from gradwire.codecs import Quantize
from gradwire.codecs.quantize import CLEARED_BITS
from gradwire_gateware.quantize.code import divided_bit, divided_digit, scale_of
from support.hardware_chunks import EXHAUSTIVE
from support.proofs import Claim, Wires, counterexample


class ScaleIsLittleLess(Claim):
    """The largest code times the scale is at most the peak, and at most ``share`` of it less."""

    def __init__(self, bits: int, share: float) -> None:
        super().__init__()
        self._codec, self._parts = Quantize(bits), int(1 / share)
        self._mantissa, self._exponent = self.given("mantissa", 23), self.given("exponent", 8)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        peak = Cat(self._mantissa, self._exponent)
        scale, _ = scale_of(m, Wires(m), self._codec, peak)
        largest, bits = self._codec.largest_code, self._codec.bits - 1
        above = (scale[15:] - (self._exponent - bits))[:8]
        of_codes = (Cat(Const(0, CLEARED_BITS - bits), scale[:15], Const(1, 1)) << above[0]) * largest
        of_peak = Cat(self._mantissa, Const(1, 1))
        is_little = (of_codes <= of_peak) & ((of_peak - of_codes) * self._parts <= of_peak)
        has_codes = (self._exponent >= 27) & (self._exponent != 255)
        m.d.comb += self.holds.eq(~has_codes | ((above <= 1) & is_little))
        return m


class DigitIsRight(Claim):
    """A digit of a quotient and what remains are right, so that by induction whole quotients are."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self._remainder, self._digit = self.given("remainder", bits), self.given("digit", bits)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m, bits, remainder = Module(), len(self._digit), self._remainder
        largest = 2**bits - 1
        digit, left = divided_digit(remainder, self._digit)
        is_right = digit * largest + left == (remainder << bits) + self._digit
        m.d.comb += self.holds.eq((remainder >= largest) | (is_right & (left < largest)))
        return m


class BitIsRight(Claim):
    """The same for a bit of an inverse. It may leave the divisor itself, but never more.

    So 2^40 is Q S and at most S more. The inverse's significand is half of Q + 1, rounded down: it times S is
    within S / 2 of 2^39.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rest, self._mantissa = self.given("rest", 16), self.given("mantissa", 15)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        divisor = Cat(self._mantissa, Const(1, 1))
        bit, left = divided_bit(m, self._rest, divisor)
        is_right = Mux(bit, divisor, 0) + left == self._rest << 1
        m.d.comb += self.holds.eq((self._rest > divisor) | (is_right & (left <= divisor)))
        return m


@pytest.mark.parametrize("bits", [8, 4] if EXHAUSTIVE else [4])
def test_a_scale_is_at_most_a_little_too_small(bits: int, tmp_path: Path) -> None:
    assert counterexample(ScaleIsLittleLess(bits, 2.0**-15), tmp_path) is None


def test_a_smaller_loss_is_refuted(tmp_path: Path) -> None:
    assert counterexample(ScaleIsLittleLess(4, 2.0**-16), tmp_path) is not None


@pytest.mark.parametrize("claim", [DigitIsRight(7), DigitIsRight(3), BitIsRight()], ids=["7", "3", "inverse"])
def test_divisions_go_on_as_they_should(claim: Claim, tmp_path: Path) -> None:
    assert counterexample(claim, tmp_path) is None
