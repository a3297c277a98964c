from pathlib import Path

import pytest
from amaranth import Cat, Module
from amaranth.lib import wiring

from gradwire_gateware.stream import SkidBuffer
from support.hardware_chunks import EXHAUSTIVE
from support.keeping import Keeping
from support.proofs import Claim, Marked, Watched, counterexample, kept

STEPS = 10 if EXHAUSTIVE else 6


class KeepsWords(Claim):
    """Every byte leaves a skid buffer of two bytes once and in order, whatever its neighbours do.

    It may be kept behind the buffer. (Where a byte leaves as it comes, this proof sees nothing.)
    """

    def __init__(self, *, is_kept: bool) -> None:
        super().__init__()
        self._is_kept = is_kept
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
        if self._is_kept:
            m.submodules.keeping = keeping = Keeping(16)
            wiring.connect(m, go, keeping.s_axis)
            go = keeping.m_axis
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


@pytest.mark.parametrize("is_kept", [False, True])
def test_words_pass_a_buffer_unchanged(tmp_path: Path, *, is_kept: bool) -> None:
    assert counterexample(KeepsWords(is_kept=is_kept), tmp_path, STEPS) is None
