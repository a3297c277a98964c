from pathlib import Path

import pytest
from amaranth import Cat, Const, Module, Mux, Signal

from gradwire.gateware.group_finder import GroupFinder
from support.hardware_chunks import EXHAUSTIVE
from support.proofs import Claim, Marked, counterexample, kept

WIDTH, SIZE = 256, 32


class FindsGroups(Claim):
    """For all bytes and all stalls, groups follow each other in the window, up to the end of the packet.

    The claim reads the length of each group from the window, adds it to the group's place, and wants the next
    one there. A marked byte shows that the window is where it should be.
    """

    def __init__(self) -> None:
        super().__init__()
        self._data, self._count, self._last = (
            self.given("data", WIDTH),
            self.given("count", 6),
            self.given("last", 1),
        )
        self._valid, self._ready = self.given("valid", 1), self.given("ready", 1)
        self._chooses, self._index = self.given("chooses", 1), self.given("index", 5)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        m.submodules.finder = finder = GroupFinder(WIDTH)
        come = finder.s_axis
        count, keep = kept(self._count, self._last, SIZE)
        m.d.comb += [
            Cat(come.tdata, come.tkeep, come.tlast, come.tvalid).eq(
                Cat(self._data, keep, self._last, self._valid)
            ),
            finder.ready.eq(self._ready),
        ]
        marked = Marked(m, place_bits=10)
        marked.choose(come.tvalid & come.tready, self._chooses, self._data, self._index, count, self._last)

        packet, place = Signal(4), Signal(10)
        start = finder.starts[:7]
        base = (place - start)[:10]
        tags = (finder.window >> Cat(Const(0, 3), start))[:16]
        sizes = [
            (tag == 1) + 2 * (tag == 2) + 4 * (tag == 3)
            for tag in (tags.word_select(lane, 2) for lane in range(8))
        ]
        after = place + 2 + sum(sizes, Const(0, 1))
        moves = finder.valid & finder.ready
        with m.If(moves):
            m.d.sync += [packet.eq(packet + finder.last), place.eq(Mux(finder.last, 0, after))]

        here = marked.chosen & (packet == marked.packet)
        offset = (marked.place - base)[:7]
        is_read = here & (marked.place >= place) & (marked.place < after)
        is_right = (finder.window >> Cat(Const(0, 3), offset))[:8] == marked.byte
        ends = marked.ended & (after >= marked.nbytes)
        on_leaving = (
            (base % SIZE == 0)
            & (start < SIZE)
            & (base <= place)
            & (~is_read | is_right)
            & (~here | (finder.last == ends))
            & finder.present
        )
        m.d.comb += self.holds.eq(~moves | ~here | on_leaving)
        return m


@pytest.mark.parametrize("steps", [6] if EXHAUSTIVE else [4])
def test_groups_are_found_where_they_begin(steps: int, tmp_path: Path) -> None:
    assert counterexample(FindsGroups(), tmp_path, steps) is None
