from pathlib import Path

import pytest
from amaranth import Cat, Const, Module, Value

from gradwire.gateware.group_finder import _ends, _lengths, _sum
from gradwire.gateware.inceptionn_format import GROUP_LANES
from support.hardware_chunks import EXHAUSTIVE
from support.proofs import Claim, Wires, counterexample

WORDS = {1: 32, 2: 64}
"""The bytes of a word, by the groups that are found in it at once."""


class KnowsWhereGroupsEnd(Claim):
    """For all bytes, places, and ends of a packet: the tables have the ends of one group and of two.

    The claim reads the tags at the place itself. ``slip`` moves what it expects.
    """

    def __init__(self, groups: int, slip: int = 0) -> None:
        super().__init__()
        self._groups, self._slip, self._size = groups, slip, WORDS[groups]
        self._bits = (2 * self._size + 34).bit_length()
        self._next, self._far = self.given("next_", 8 * self._size), self.given("far", 8 * self._size)
        self._new, self._end = self.given("new", 8), self.given("end", self._bits)
        self._place = self.given("place", self._size.bit_length() - 1)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        wires, size = Wires(m), self._size
        next_sums, far_sums = (
            wires.hold(Cat(_sum(word, at) for at in range(size))) for word in (self._next, self._far)
        )
        lengths = Cat(_lengths(m, next_sums, _sum(self._far, 0)), _lengths(m, far_sums, _sum(self._new, 0)))
        ends, finals = _ends(m, lengths, self._end, size, self._groups, self._bits)
        window = Cat(self._next, self._far, self._new)
        place: Value = self._place
        right: list[Value] = []
        for end, final in zip(ends, finals, strict=True):
            place = wires.hold((place + self._length(wires, window, place) + self._slip)[: self._bits])
            right.append(end.word_select(self._place, self._bits) == place)
            right.append(final.bit_select(self._place, 1) == (place >= self._end))
        m.d.comb += self.holds.eq(Cat(right).all())
        return m

    def _length(self, wires: Wires, window: Value, place: Value) -> Value:
        tags = wires.hold((window >> Cat(Const(0, 3), place))[: 2 * GROUP_LANES])
        lanes = [tags.word_select(lane, 2) for lane in range(GROUP_LANES)]
        return sum((Cat(tag == 1, tag == 2, tag == 3) for tag in lanes), Const(2, 2))


@pytest.mark.parametrize("groups", WORDS if EXHAUSTIVE else [1])
def test_the_ends_of_groups_are_known_at_every_byte(groups: int, tmp_path: Path) -> None:
    assert counterexample(KnowsWhereGroupsEnd(groups), tmp_path) is None


def test_a_group_that_ends_elsewhere_is_refuted(tmp_path: Path) -> None:
    assert counterexample(KnowsWhereGroupsEnd(1, slip=1), tmp_path) is not None
