from pathlib import Path

import pytest
import torch
from amaranth import Module, Mux

from gradwire.codecs import Bfp
from gradwire.codecs.blocks import NAN_EXPONENT, SMALLEST_EXPONENT
from gradwire_gateware.bfp import _rounded, _value
from support.hardware_chunks import EXHAUSTIVE
from support.proofs import Claim, Wires, counterexample, scaled

FRACTION_BITS = 2


class LaneKeepsItsBound(Claim):
    """For every float, and every exponent of its block that is no smaller."""

    def __init__(self, codec: Bfp, share: float) -> None:
        super().__init__()
        self._bits = codec.mantissa_bits
        unit = codec.bound(torch.tensor([1.0])) - 2.0 ** (SMALLEST_EXPONENT - 127)
        self._bound = int(unit * share * 2 ** (23 + FRACTION_BITS))
        self._x, self._peak = self.given("x", 32), self.given("peak", 8)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        x, peak, wires = self._x, self._peak, Wires(m)
        is_tiny, is_odd = peak < SMALLEST_EXPONENT, peak == NAN_EXPONENT
        mantissa = _rounded(wires, x, peak, is_tiny | is_odd, self._bits)
        y = _value(wires, mantissa, Mux(is_tiny, 0, peak), self._bits)
        exact, lost = scaled(wires, x, peak, FRACTION_BITS)
        found, never = scaled(wires, y, peak, FRACTION_BITS)
        error = Mux(found > exact, found - exact, exact - found + lost)
        is_near = (error <= self._bound) & ~never & ((found == 0) | (y[31] == x[31]))
        is_nan = (y[23:31] == 255) & (y[:23] != 0)
        right = Mux(is_tiny, y[:31] == 0, Mux(is_odd, is_nan, is_near))
        m.d.comb += self.holds.eq((x[23:31] > peak) | right)
        return m


@pytest.mark.parametrize("bits", range(1, 16) if EXHAUSTIVE else (1, 7, 15))
def test_no_error_exceeds_the_bound(bits: int, tmp_path: Path) -> None:
    assert counterexample(LaneKeepsItsBound(Bfp(bits, 16), 1.0), tmp_path) is None


def test_half_the_bound_is_refuted(tmp_path: Path) -> None:
    assert counterexample(LaneKeepsItsBound(Bfp(7, 16), 0.5), tmp_path) is not None
