from pathlib import Path

import pytest
import torch
from amaranth import Cat, Const, Module, Mux, Value

from gradwire.codecs import Inceptionn
from gradwire_gateware.formats import Classes
from gradwire_gateware.inceptionn.compressor import _code
from gradwire_gateware.inceptionn.decompressor import _decoded
from support.hardware_chunks import EXHAUSTIVE
from support.proofs import Claim, Wires, counterexample, scaled

FRACTION_BITS = 8
"""Below the significand of a float just under 1: the smallest bound, and every decoded value, are whole."""


class LaneKeepsItsBound(Claim):
    """For every float, and whatever follows its bytes: the error, the sign, exactness, and idempotence."""

    def __init__(self, codec: Inceptionn, bound: float) -> None:
        super().__init__()
        self._classes = Classes.of(codec)
        self._bound = int(bound * 2 ** (24 + FRACTION_BITS))
        self._x, self._junk = self.given("x", 32), self.given("junk", 32)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m, x = Module(), self._x
        wires = Wires(m)
        y, is_clean = self._decoded(wires, m, x)
        again, _ = self._decoded(wires, m, y)
        exact, lost = scaled(wires, x, 126, FRACTION_BITS)
        found, never = scaled(wires, y, 126, FRACTION_BITS)
        is_below_one = x[23:31] < 127
        is_near = (found <= exact) & (exact + lost <= found + self._bound) & ~never
        m.d.comb += self.holds.eq(
            is_clean & (again == y) & Mux(is_below_one, is_near & ((y == 0) | (y[31] == x[31])), y == x)
        )
        return m

    def _decoded(self, wires: Wires, m: Module, x: Value) -> tuple[Value, Value]:
        tag, bits = _code(m, self._classes, x, Const(1, 1))
        is_one_byte, is_two, is_four = tag >= 1, tag >= 2, tag == 3
        own = Cat(each.replicate(8) for each in (is_one_byte, is_two, is_four, is_four))
        y = _decoded(wires, self._classes, tag, bits | (self._junk & ~own))
        return y, (bits & ~own) == 0


def bound_of(codec: Inceptionn) -> float:
    return codec.bound(torch.empty(0))


CODECS = [Inceptionn(2.0**-k) for k in range(1, 21)] + [Inceptionn(2.0**-k, True) for k in range(1, 15)]
FEW = [Inceptionn(2.0**-10), Inceptionn(2.0**-20), Inceptionn(2.0**-10, True), Inceptionn(2.0**-14, True)]


@pytest.mark.parametrize("codec", CODECS if EXHAUSTIVE else FEW, ids=str)
def test_no_error_exceeds_the_bound(codec: Inceptionn, tmp_path: Path) -> None:
    assert counterexample(LaneKeepsItsBound(codec, bound_of(codec)), tmp_path) is None


@pytest.mark.parametrize("codec", FEW[::2], ids=str)
def test_half_the_bound_is_refuted(codec: Inceptionn, tmp_path: Path) -> None:
    assert counterexample(LaneKeepsItsBound(codec, bound_of(codec) / 2), tmp_path) is not None
