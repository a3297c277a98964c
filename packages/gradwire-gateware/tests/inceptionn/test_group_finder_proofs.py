from pathlib import Path
from types import SimpleNamespace

import pytest
from amaranth import Cat, Const, Module, Mux, Signal, Value

from gradwire_gateware.formats import GROUP_LANES, GROUP_NBYTES
from gradwire_gateware.inceptionn import decompressor as group_finder
from gradwire_gateware.inceptionn.decompressor import (
    GroupFinder,
    _firsts,
    _lengths,
    _looked_up,
    _seconds,
    _sum,
)
from support.hardware_chunks import EXHAUSTIVE
from support.proofs import Claim, Marked, WatchedPieces, Wires, counterexample, kept

SIZES = (32, 64)
"""The bytes of a word, where one group is found at once, and where two are."""


class KnowsWhereAGroupEnds(Claim):
    """For all bytes and places: the table has the end of the group that begins there.

    The claim reads the tags at the place itself. ``slip`` moves what it expects.
    """

    def __init__(self, size: int, slip: int = 0) -> None:
        super().__init__()
        self._slip, self._size = slip, size
        self._bits = (2 * size + 34).bit_length()
        self._word, self._after = self.given("word", 8 * size), self.given("after", 8)
        self._place = self.given("place", size.bit_length() - 1)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        wires = Wires(m)
        sums = [wires.hold(_sum(self._word, at)) for at in range(self._size)]
        ends = _firsts(_lengths(sums, _sum(self._after, 0)), self._bits)
        length = self._length(wires, Cat(self._word, self._after), self._place)
        m.d.comb += self.holds.eq(_looked_up(ends, self._place) == self._place + length + self._slip)
        return m

    def _length(self, wires: Wires, window: Value, place: Value) -> Value:
        tags = wires.hold((window >> Cat(Const(0, 3), place))[: 2 * GROUP_LANES])
        lanes = [tags.word_select(lane, 2) for lane in range(GROUP_LANES)]
        return sum((Cat(tag == 1, tag == 2, tag == 3) for tag in lanes), Const(2, 2))


class KnowsWhatFollows(Claim):
    """For all lengths and places: the table has the length of the group behind that which begins there."""

    def __init__(self, slip: int = 0) -> None:
        super().__init__()
        self._slip, self._bits = slip, GROUP_NBYTES.bit_length()
        self._lengths = self.given("lengths", 2 * SIZES[1] * self._bits)
        self._place = self.given("place", SIZES[1].bit_length() - 1)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        lengths = [self._lengths.word_select(at, self._bits) for at in range(2 * SIZES[1])]
        length = Wires(m).hold(_looked_up(lengths, self._place))
        right = _looked_up(lengths, (self._place + length + self._slip)[:7])
        found = _looked_up(_seconds(lengths[: SIZES[1]], lengths[SIZES[1] :]), self._place)
        m.d.comb += self.holds.eq((length > GROUP_NBYTES) | (found == right))
        return m


@pytest.mark.parametrize("size", SIZES if EXHAUSTIVE else SIZES[:1])
def test_the_end_of_a_group_is_known_at_every_byte(size: int, tmp_path: Path) -> None:
    assert counterexample(KnowsWhereAGroupEnds(size), tmp_path) is None


def test_the_length_of_what_follows_is_known_at_every_byte(tmp_path: Path) -> None:
    assert counterexample(KnowsWhatFollows(), tmp_path) is None


def test_a_group_that_ends_or_begins_elsewhere_is_refuted(tmp_path: Path) -> None:
    assert counterexample(KnowsWhereAGroupEnds(SIZES[0], slip=1), tmp_path) is not None
    assert counterexample(KnowsWhatFollows(slip=1), tmp_path) is not None


LATENCIES = {1: 5, 2: 7}
"""Within so many cycles, by the groups that are found at once, an output follows. Fewer are refuted."""


class FindsGroups(Claim):
    """Every byte of a payload is shown once and in its place, and each packet ends with its last group.

    Words of four bytes stand for those of 32, and groups of two to six bytes for those of two to 34: every
    second lane costs a byte if the lower bit of its tag is set.
    """

    def __init__(self, groups: int, latency: int | None = None) -> None:
        super().__init__()
        self._groups, self._latency = groups, latency or LATENCIES[groups]
        size = 4 * groups
        self._data, self._count = self.given("data", 8 * size), self.given("count", size.bit_length())
        self._last = self.given("last", 1)
        self._valid, self._ready = self.given("valid", 1), self.given("ready", 1)
        self._chooses, self._index = self.given("chooses", 1), self.given("index", size.bit_length() - 1)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m, size = Module(), 4 * self._groups
        m.submodules.finder = finder = GroupFinder(8 * size)
        come = finder.s_axis
        count, keep = kept(self._count, self._last, size)
        m.d.comb += [
            Cat(come.tdata, come.tkeep, come.tlast).eq(Cat(self._data, keep, self._last)),
            come.tvalid.eq(self._valid & ((count != 0) | self._last)),
            finder.ready.eq(self._ready),
        ]
        marked = Marked(m)
        marked.choose(come.tvalid & come.tready, self._chooses, self._data, self._index, count, self._last)
        was_ready = Signal()  # outputs follow by a cycle
        m.d.sync += was_ready.eq(self._ready)
        shown = SimpleNamespace(valid=finder.valid, ready=was_ready, last=finder.last, window=finder.window)
        watched = WatchedPieces(m, marked, shown)
        end: Value = watched.before
        right = []
        is_over: Value = Const(0)
        for group in range(self._groups):
            start = finder.starts.word_select(group, len(finder.starts) // self._groups)
            length = self._length(finder.window, start)
            right.append(~finder.present[group] | watched.shows(start, end, length))
            right.append(~watched.here | (finder.present[group] == ~is_over))
            end = Mux(finder.present[group], end + length, end)
            is_over = is_over | (marked.ended & (end >= marked.nbytes))
        watched.takes(end - watched.before)
        right.append(~watched.here | (finder.last == is_over))
        m.d.comb += self.holds.eq(watched.comes(self._latency) & (~watched.fires | Cat(right).all()))
        return m

    def _length(self, window: Value, start: Value) -> Value:
        costs = [window.bit_select(8 * start[:5] + 4 * lane, 1) for lane in range(4)]
        return sum(costs, Const(2, 2))


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make groups so small that a solver sees several words of them."""
    for name, value in (("GROUP_LANES", 1), ("GROUP_NBYTES", 6), ("_LENGTH_BITS", 3)):
        monkeypatch.setattr(group_finder, name, value)
    sizes = Const(sum((tags & 1) << (4 * tags) for tags in range(16)), 4 * 16)
    monkeypatch.setattr(group_finder, "SIZES_OF_TWO", sizes)


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize(("groups", "steps"), [(1, 9), (2, 10)] if EXHAUSTIVE else [(1, 7)])
def test_groups_are_found_whatever_comes_and_goes(groups: int, steps: int, tmp_path: Path) -> None:
    assert counterexample(FindsGroups(groups), tmp_path, steps) is None


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize(("groups", "steps"), [(1, 7), (2, 10)] if EXHAUSTIVE else [(1, 7)])
def test_groups_that_come_sooner_are_refuted(groups: int, steps: int, tmp_path: Path) -> None:
    assert counterexample(FindsGroups(groups, LATENCIES[groups] - 1), tmp_path, steps) is not None
