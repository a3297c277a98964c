from pathlib import Path

import pytest
from amaranth import Cat, Module
from amaranth.lib import wiring

from gradwire.gateware.stream import LateBuffer, SkidBuffer
from support.hardware_chunks import EXHAUSTIVE
from support.proofs import Claim, Marked, Watched, counterexample, kept

STEPS = 10 if EXHAUSTIVE else 6


class KeepsWords(Claim):
    """Every byte leaves a skid buffer of two bytes once and in order, whatever its neighbours do.

    A late buffer may follow: in it, a byte can leave as it comes, which the proof alone doesn't see.
    """

    def __init__(self, *, has_late: bool) -> None:
        super().__init__()
        self._has_late = has_late
        self._data, self._count, self._last = (
            self.given("data", 16),
            self.given("count", 2),
            self.given("last", 1),
        )
        self._valid, self._ready = self.given("valid", 1), self.given("ready", 1)
        self._chooses, self._index = self.given("chooses", 1), self.given("index", 1)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        m.submodules.block = block = SkidBuffer(16)
        come, go = block.s_axis, block.m_axis
        if self._has_late:
            m.submodules.late = late = LateBuffer(16)
            wiring.connect(m, go, late.s_axis)
            go = late.m_axis
        count, keep = kept(self._count, self._last, 2)
        m.d.comb += [
            Cat(come.tdata, come.tkeep, come.tlast, come.tvalid).eq(
                Cat(self._data, keep, self._last, self._valid)
            ),
            go.tready.eq(self._ready),
        ]
        marked = Marked(m)
        moves = come.tvalid & come.tready
        marked.choose(moves, self._chooses, self._data, self._index, count, self._last)
        watched = Watched(m, marked, go)
        m.d.comb += self.holds.eq(watched.holds(3) & (come.tready | go.tvalid))
        return m


@pytest.mark.parametrize("has_late", [False, True])
def test_words_pass_a_buffer_unchanged(tmp_path: Path, *, has_late: bool) -> None:
    assert counterexample(KeepsWords(has_late=has_late), tmp_path, STEPS) is None
