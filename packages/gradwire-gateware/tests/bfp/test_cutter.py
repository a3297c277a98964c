from pathlib import Path

import pytest
from amaranth import Cat, Module, Mux, Signal, Value

from gradwire_gateware.bfp import BfpCutter
from gradwire_gateware.formats import BfpLayout
from support.hardware_chunks import EXHAUSTIVE
from support.proofs import Claim, Marked, WatchedPieces, counterexample, kept


class CutsBlocksApart(Claim):
    """Every byte of a payload is shown once and in its place, and a packet ends with its last whole word.

    Words of four bytes stand for those of 32; ``nbytes`` of them are the mantissas of a word of float32.
    Two cycles after a packet is there, outputs follow in every cycle. ``slip`` moves what the claim expects.

    A packet that ends with an empty word may end with one output more, which has no mantissas: the empty word
    may come later than what tells that all bytes before it are taken.
    """

    def __init__(self, words: int, nbytes: int = 2, slip: int = 0) -> None:
        super().__init__()
        self._layout, self._slip = BfpLayout(0, 0, words, nbytes), slip
        self._data, self._count, self._last = (
            self.given("data", 32),
            self.given("count", 3),
            self.given("last", 1),
        )
        self._valid, self._ready = self.given("valid", 1), self.given("ready", 1)
        self._chooses, self._index = self.given("chooses", 1), self.given("index", 2)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m, layout = Module(), self._layout
        m.submodules.cutter = cutter = BfpCutter(layout, 32)
        come = cutter.s_axis
        count, keep = kept(self._count, self._last, 4)
        m.d.comb += [
            Cat(come.tdata, come.tkeep, come.tlast, come.tvalid).eq(
                Cat(self._data, keep, self._last, self._valid & ((count != 0) | self._last))
            ),
            cutter.ready.eq(self._ready),
        ]
        marked = Marked(m)
        moves = come.tvalid & come.tready
        marked.choose(moves, self._chooses, self._data, self._index, count, self._last)
        watched = WatchedPieces(m, marked, cutter)
        opens, opens_next = self._openings(m, cutter)
        length, following = layout.nbytes + opens, layout.nbytes + opens_next
        watched.takes(length)
        after = watched.before + length
        ends = marked.ended & (after + following > marked.nbytes)
        is_over = marked.ended & (after > marked.nbytes)
        ends_empty = Signal()
        with m.If(moves & ~marked.ended):
            m.d.sync += ends_empty.eq(count == 0)
        is_late = ends_empty & ~is_over & ~cutter.last
        is_right = Mux(
            watched.here,
            ((cutter.last == ends) | (ends & is_late)) & (cutter.is_null == is_over),
            cutter.opens == opens,
        )
        shows = watched.shows(cutter.place + self._slip, watched.before, length)
        m.d.comb += self.holds.eq(watched.comes(2) & (~watched.fires | (is_right & shows)))
        return m

    def _openings(self, m: Module, cutter: BfpCutter) -> tuple[Value, Value]:
        """Return whether this word and the one after it begin blocks."""
        words = self._layout.words
        index = Signal(range(words + 1))
        closes = index == words - 1
        with m.If(cutter.valid & cutter.ready):
            m.d.sync += index.eq(Mux(cutter.last | closes, 0, index + 1))
        return index == 0, closes


STEPS = 11 if EXHAUSTIVE else 8


@pytest.mark.parametrize(("words", "nbytes"), [(1, 2), (2, 2), (3, 1)] if EXHAUSTIVE else [(2, 2)])
def test_a_payload_is_cut_into_words_of_mantissas(words: int, nbytes: int, tmp_path: Path) -> None:
    assert counterexample(CutsBlocksApart(words, nbytes), tmp_path, STEPS) is None


def test_mantissas_that_stand_elsewhere_are_refuted(tmp_path: Path) -> None:
    assert counterexample(CutsBlocksApart(2, slip=1), tmp_path, 6) is not None
