from pathlib import Path

import pytest
from amaranth import Cat, Const, Module, Mux

from gradwire.codecs import ErrBound
from gradwire_gateware.errbound.coder import _coded, _decoded
from gradwire_gateware.errbound.share import Steps
from support.hardware_chunks import EXHAUSTIVE
from support.proofs import Claim, Wires, counterexample, scaled


class LaneKeepsItsBound(Claim):
    """For every float, and whatever follows its bytes; what is carried whole is exact."""

    def __init__(self, codec: ErrBound, share: float) -> None:
        super().__init__()
        self._steps, self._share = Steps.of(codec), share
        self._x, self._junk = self.given("x", 32), self.given("junk", 32)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m, x = Module(), self._x
        wires, bound = Wires(m), self._steps.exponent
        tag, bits = _coded(wires, self._steps, x)
        own = Cat(each.replicate(8) for each in (tag >= 1, tag >= 2, tag == 3, tag == 3))
        y = _decoded(wires, Const(bound, 8), tag, bits | (self._junk & ~own))

        highest = min(bound + 16, 254)  # the exponent of what isn't carried whole, at most
        exact, lost = scaled(wires, x, highest, 0)
        found, never = scaled(wires, y, highest, 0)
        error = Mux(found > exact, found - exact, exact - found + lost)
        most = int(2.0 ** (bound - highest + 23) * self._share)
        is_near = (error <= most) & ~never & ((found == 0) | (y[31] == x[31]))
        right = Mux(tag == 3, y == x, (x[23:31] <= highest) & is_near)
        m.d.comb += self.holds.eq(right & ((bits & ~own) == 0))
        return m


@pytest.mark.parametrize("power", range(-126, 127) if EXHAUSTIVE else (-10, 126))
def test_no_error_exceeds_the_bound(power: int, tmp_path: Path) -> None:
    assert counterexample(LaneKeepsItsBound(ErrBound(2.0**power), 1.0), tmp_path) is None


def test_half_the_bound_is_refuted(tmp_path: Path) -> None:
    assert counterexample(LaneKeepsItsBound(ErrBound(2.0**-10), 0.5), tmp_path) is not None
