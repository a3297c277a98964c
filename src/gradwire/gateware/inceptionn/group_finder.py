"""Where the groups of an ``inceptionn`` payload begin: as many in a cycle as a word of float32 takes.

A group's length stands in its first two bytes, so that its place depends on all groups before it. For every
byte of a word, the finder computes in advance where the groups would end if they began there; what remains to
do within one cycle is to look up one of these places.
"""

from __future__ import annotations

from collections.abc import Sequence

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from gradwire.gateware.inceptionn.format import GROUP_LANES, GROUP_NBYTES
from gradwire.gateware.stream import AxiStream, Pipeline, count_kept
from gradwire.gateware.words import LANE_BITS

_SIZES = (0, 1, 2, 4)
SIZES_OF_TWO = Const(sum((_SIZES[tags & 3] + _SIZES[tags >> 2]) << (4 * tags) for tags in range(16)), 4 * 16)
"""The bytes of two lanes by their two tags, four bits an entry."""
_LENGTH_BITS = GROUP_NBYTES.bit_length()


class GroupFinder(wiring.Component):
    """Gives the bytes from which the groups of a word of float32 are decoded, and where they begin.

    Four words are at hand: the current one, two after it, and one that has just come. A word moves on only
    with its successor behind it, so that a group's bytes are visible wherever they end; but the last words of
    a packet wait for nothing. There is an output in each cycle in which ``valid`` is high, and ``ready`` was
    in the cycle before: the bytes follow the places by a cycle, because many registers move with them.

    A packet that is no payload loses its alignment, but not its end: nothing stalls, and the next is whole.
    """

    def __init__(self, width: int) -> None:
        self._size = width // 8
        self._groups = width // LANE_BITS // GROUP_LANES
        self._place_bits = (2 * self._size + GROUP_NBYTES).bit_length()
        super().__init__(
            {
                "s_axis": In(AxiStream(width)),
                "ready": In(1),
                "valid": Out(1),
                "last": Out(1),
                "present": Out(self._groups),
                "window": Out(3 * width),
                "starts": Out(self._place_bits * self._groups),
            }
        )

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit: the words at hand, and the place in the current one."""
        m = Module()
        come, size, places = self.s_axis, self._size, self._place_bits
        advance, consume, moved = Signal(), Signal(), Signal()
        take, stage, free = Pipeline(m, come.tready), Pipeline(m, advance), Pipeline(m, Const(1))
        follow = Pipeline(m, moved)

        new_valid = Signal()
        new, new_last = take.hold(come.tdata), take.hold(come.tlast)
        new_count = take.hold(count_kept(come.tkeep))
        far_valid = stage.hold(new_valid, resets=True)
        far_last, far_count = stage.hold(new_last), stage.hold(new_count)
        far_sums = stage.hold(Cat(_sum(new, at) for at in range(size)))
        next_valid = stage.hold(far_valid, resets=True)
        next_last, next_count = stage.hold(far_last), stage.hold(far_count)
        far_lengths = _lengths(m, far_sums, _sum(new, 0))
        next_lengths = stage.hold(far_lengths)
        last, valid = stage.hold(next_last), Signal()
        far = follow.hold(free.hold(new))
        next_ = follow.hold(far)
        current = follow.hold(next_)

        nowhere = 2**places - 1
        end = Signal(places)
        far_end = Mux(far_last, size + far_count, Mux(new_last & new_valid, 2 * size + new_count, nowhere))
        m.d.comb += end.eq(Mux(next_last, next_count, far_end))
        is_empty = stage.hold(end == 0)
        ends, finals = _ends(m, Cat(next_lengths, far_lengths), end, size, self._groups, places)
        # Whether the word is done decides whether all registers move on: one bit to look up, and no more.
        leaves = stage.hold(
            Cat(_leaves(ends[-1].word_select(at, places), finals, at, size) for at in range(size))
        )
        ends, finals = [stage.hold(each) for each in ends], [stage.hold(each) for each in finals]

        place, skips = Signal(range(2 * size)), Signal()
        inverse = Signal(len(place) - 1, init=-1)  # of the place: its bits would have too many readers
        is_within = ~skips & (place < size)
        has_groups = valid & is_within
        found = [each.word_select(place[:-1], places) for each in ends]
        closing = [each.bit_select(place[:-1], 1) for each in finals]
        is_final = Cat(closing).any()
        after = Signal(places)
        fires, may_move = has_groups & self.ready, new_valid | ~far_valid | far_last
        is_done = leaves.bit_select(~inverse, 1)
        m.d.comb += [
            after.eq(found[-1]),
            self.valid.eq(free.hold(fires, resets=True)),
            self.last.eq(free.hold(is_final)),
            self.present.eq(free.hold(Mux(is_empty, 0, Cat(1, ~closing[0]))[: self._groups])),
            self.window.eq(Cat(current, next_, far)),
            self.starts.eq(
                free.hold(Cat(place, Const(0, places - len(place)), found[0])[: len(self.starts)])
            ),
            consume.eq((valid & ~is_within) | (fires & is_done)),
            advance.eq((may_move & ~has_groups) | (may_move & self.ready & is_done)),
            # The last word may move on if there is none; a shorter path than through ``advance``.
            come.tready.eq(~new_valid | ~has_groups | (self.ready & is_done)),
            moved.eq(free.hold(advance, resets=True)),
        ]
        ended = Mux(is_within, is_final, skips)
        following = Mux(ended, 0, Mux(is_within, after, place) - Mux(consume, size, 0))[: len(place)]
        with m.If(fires | consume):
            m.d.sync += [skips.eq(ended & ~last), place.eq(following), inverse.eq(~following[:-1])]
        with m.If(come.tready):
            m.d.sync += new_valid.eq(come.tvalid)
        with m.If(advance):
            m.d.sync += valid.eq(next_valid)
        with m.Elif(consume):
            m.d.sync += valid.eq(0)
        return m


def _sum(word: Value, at: int) -> Value:
    """Return the bytes of the four lanes whose tags are byte ``at`` of a word."""
    low, high = word.word_select(2 * at, 4), word.word_select(2 * at + 1, 4)
    return (SIZES_OF_TWO.word_select(low, 4) + SIZES_OF_TWO.word_select(high, 4))[:5]


def _lengths(m: Module, sums: Value, following: Value) -> Value:
    """Return the length of a group that begins at each byte of a word, given the first byte after it."""
    lengths = Signal(_LENGTH_BITS * (len(sums) // 5))
    both = Cat(sums, following)
    for at in range(len(sums) // 5):
        m.d.comb += lengths.word_select(at, _LENGTH_BITS).eq(
            both.word_select(at, 5) + both.word_select(at + 1, 5) + 2
        )
    return lengths


def _leaves(end: Value, finals: Sequence[Value], at: int, size: int) -> Value:
    """Return whether nothing is left of a word after the groups that begin at a byte."""
    return (end >= size) | Cat(final[at] for final in finals).any()


def _ends(
    m: Module, lengths: Value, end: Value, size: int, groups: int, bits: int
) -> tuple[list[Value], list[Value]]:
    """Return where one group ends that begins at each byte, then two, and if a packet's ``end`` is there."""
    ends = [Signal(bits * size, name=f"ends{count}") for count in range(groups)]
    finals = [Signal(size, name=f"finals{count}") for count in range(groups)]
    for at in range(size):
        place: Value = Const(at, bits)
        for count in range(groups):
            place = (place + lengths.word_select(place, _LENGTH_BITS))[:bits]
            here = ends[count].word_select(at, bits)
            m.d.comb += [here.eq(place), finals[count][at].eq(here >= end)]
            place = here
    return ends, finals
