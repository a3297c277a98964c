"""The decompressor of ``inceptionn``, which separates and decodes a payload's groups of eight lanes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from gradwire.codecs import Inceptionn
from gradwire_gateware import LANE_BITS
from gradwire_gateware.formats import GROUP_LANES, GROUP_NBYTES, Classes
from gradwire_gateware.queues import counted_memory
from gradwire_gateware.stream import (
    COARSE,
    AxiStream,
    Circuit,
    Pipeline,
    block_ports,
    count_kept,
    kept_word,
    leading_zeros,
    send,
    shift_right_bytes,
    stream,
)

# The offsets of the groups in an ``inceptionn`` payload, for one word of float32 per cycle.
#
# A group's first two bytes determine its length, so its offset depends on all earlier groups. For every byte
# of a word, the finder computes in advance the end of a group that would begin at this byte. So only a lookup
# of one of these ends must fit in one cycle.

_SIZES = (0, 1, 2, 4)
SIZES_OF_TWO = Const(sum((_SIZES[tags & 3] + _SIZES[tags >> 2]) << (4 * tags) for tags in range(16)), 4 * 16)
"""The number of bytes of two lanes by their two tags, four bits per entry."""
_LENGTH_BITS = GROUP_NBYTES.bit_length()


class _Place:
    """A pipeline position of a word before it becomes the current word.

    ``stage`` loads if ``goes`` is high, and the current word ``is_idle`` or ``is_done``, which settles last.
    The data registers of ``follow`` load one cycle later.
    """

    def __init__(self, m: Module, is_idle: Value, is_done: Value) -> None:
        self.goes, self.loads, follows = Signal(), Signal(), Signal()
        self.stage, self.follow = Pipeline(m, self.loads), Pipeline(m, follows)
        m.d.comb += [
            self.loads.eq((self.goes & is_idle) | (self.goes & is_done)),
            follows.eq(Pipeline(m, Const(1)).hold(self.loads, resets=True)),
        ]


class _PlacedWord(NamedTuple):
    """The word in a pipeline position."""

    valid: Value
    last: Value
    count: Value
    """The number of valid bytes of the word."""
    lengths: list[Value]
    """The lengths of the groups that begin at each byte."""
    data: Value

    def moved(self, goes: Value, to: _Place) -> _PlacedWord:
        """Return the registers of the next position, which is empty if the word doesn't move."""
        hold = to.stage.hold
        return _PlacedWord(
            hold(self.valid & goes, resets=True),
            hold(self.last),
            hold(self.count),
            _held(to.stage, self.lengths),
            to.follow.hold(self.data),
        )

    def goes(self, successor_goes: Value) -> Value:
        """Return whether the position becomes free: a word moves with its successor, a last word alone."""
        return successor_goes | ~self.valid | self.last


class GroupFinder(Circuit):
    """A source of the bytes of the groups in a word of float32, with the groups' start offsets.

    The source holds four words: the current word, two words after it, and the newest word. With two groups
    per word, it holds six words, because the lookup of the second group's end needs two more stages. A word
    advances only together with its successor, so that all bytes of a group are visible. The last words of a
    packet don't wait. An output occurs in each cycle in which ``valid`` is high, if ``ready`` was high in the
    cycle before. The bytes follow the offsets by one cycle, because many registers load with them.

    An invalid packet loses its alignment, but not its end: the circuit doesn't stall, and the next packet is
    correct.
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

    def _describe(self, m: Module) -> None:
        """Describe the circuit: the words in the pipeline, and the offset in the current word."""
        come, size, places = self.s_axis, self._size, self._place_bits
        is_idle, is_done, consume, moves = Signal(), Signal(), Signal(), Signal()
        take, free = Pipeline(m, come.tready), Pipeline(m, Const(1))
        at_far, at_next = _Place(m, is_idle, is_done), _Place(m, is_idle, is_done)
        stage = at_next.stage

        # All registers wait for ``is_done``, except the input's: an arriving word may be stored.
        coming = take.hold(Cat(come.tdata, come.tlast, count_kept(come.tkeep)))
        new_valid, word, may_come = kept_word(m, take.hold(come.tvalid, resets=True), coming, moves)
        new, new_last, new_count = word[: 8 * size], word[8 * size], word[8 * size + 1 :]
        m.d.comb += [moves.eq(is_idle | is_done), come.tready.eq(may_come)]
        sums = [_sum(new, at) for at in range(size)]
        far = _PlacedWord(
            at_far.stage.hold(new_valid, resets=True),
            at_far.stage.hold(new_last),
            at_far.stage.hold(new_count),
            _lengths(_held(at_far.stage, sums), sums[0]),
            at_far.follow.hold(free.hold(new)),
        )
        m.d.comb += at_far.goes.eq(far.goes(new_valid))
        second, second_goes, third_last, third_count = far, at_far.goes, new_last & new_valid, new_count
        if self._groups == 2:
            at_third, at_second = _Place(m, is_idle, is_done), _Place(m, is_idle, is_done)
            third = far.moved(at_far.goes, at_third)
            second, second_goes = third.moved(at_third.goes, at_second), at_second.goes
            third_last, third_count = third.last, third.count
            m.d.comb += [
                at_third.goes.eq(third.goes(at_far.goes)),
                second_goes.eq(second.goes(at_third.goes)),
            ]
            firsts = _held(stage, _firsts(second.lengths, places))
            behind = _held(stage, _seconds(second.lengths, third.lengths))
            ends = [firsts, [(end + length)[:places] for end, length in zip(firsts, behind, strict=True)]]
        next_ = second.moved(second_goes, at_next)
        m.d.comb += at_next.goes.eq(next_.goes(second_goes))
        if self._groups == 1:
            ends = [_firsts(next_.lengths, places)]
        last, valid, current = stage.hold(next_.last), Signal(), at_next.follow.hold(next_.data)

        nowhere = 2**places - 1
        end, third_end = Signal(places), Signal(places)
        m.d.comb += [
            end.eq(Mux(next_.last, next_.count, Mux(second.last, size + second.count, nowhere))),
            third_end.eq(Mux(third_last, 2 * size + third_count, nowhere)),
        ]
        is_empty = stage.hold(next_.last & (next_.count == 0))
        # Only groups that begin near the end reach the third word, whose length is known late.
        finals = [
            [
                (found >= end) | (found >= third_end if at + reach * GROUP_NBYTES >= 2 * size else 0)
                for at, found in enumerate(each)
            ]
            for reach, each in enumerate(ends, 1)
        ]
        # All registers wait for the end of the current word, so this is a lookup of a single bit.
        leaves = _held(
            stage, [(ends[-1][at] >= size) | Cat(each[at] for each in finals).any() for at in range(size)]
        )
        ends, finals = [_held(stage, each) for each in ends], [_held(stage, each) for each in finals]

        place, skips = Signal(range(2 * size)), Signal()
        inverse = Signal(len(place) - 1, init=-1)  # a copy of the offset, to limit its fan-out
        is_within = ~skips & (place < size)
        has_groups = valid & is_within
        found = [_looked_up(each, place[:-1]) for each in ends]
        are_final = [_looked_up(each, place[:-1]) for each in finals]
        is_final = Cat(are_final).any()
        after = Signal(places)
        fires = has_groups & self.ready
        leaves_now = _looked_up(leaves, ~inverse)
        m.d.comb += [
            after.eq(found[-1]),
            self.valid.eq(free.hold(fires, resets=True)),
            self.last.eq(free.hold(is_final)),
            self.present.eq(free.hold(Mux(is_empty, 0, Cat(1, ~are_final[0]))[: self._groups])),
            self.window.eq(Cat(current, next_.data, second.data)),
            self.starts.eq(
                free.hold(Cat(place, Const(0, places - len(place)), found[0])[: len(self.starts)])
            ),
            consume.eq((valid & ~is_within) | (fires & leaves_now)),
            is_idle.eq(~has_groups),
            is_done.eq(self.ready & leaves_now),
        ]
        ended = Mux(is_within, is_final, skips)
        following = Mux(ended, 0, Mux(is_within, after, place) - Mux(consume, size, 0))[: len(place)]
        with m.If(fires | consume):
            m.d.sync += [skips.eq(ended & ~last), place.eq(following), inverse.eq(~following[:-1])]
        with m.If(at_next.loads):
            m.d.sync += valid.eq(next_.valid)
        with m.Elif(consume):
            m.d.sync += valid.eq(0)


def _sum(word: Value, at: int) -> Value:
    """Return the number of bytes of the four lanes whose tags are byte ``at`` of a word."""
    low, high = word.word_select(2 * at, 4), word.word_select(2 * at + 1, 4)
    return (SIZES_OF_TWO.word_select(low, 4) + SIZES_OF_TWO.word_select(high, 4))[:5]


def _lengths(sums: Sequence[Value], following: Value) -> list[Value]:
    """Return the length of a group at each byte; ``following`` is the next word's first sum."""
    return [(low + high + 2)[:_LENGTH_BITS] for low, high in pairwise([*sums, following])]


def _firsts(lengths: Sequence[Value], bits: int) -> list[Value]:
    """Return the end offset of a group that begins at each byte of a word."""
    return [(at + length)[:bits] for at, length in enumerate(lengths)]


def _seconds(lengths: Sequence[Value], after: Sequence[Value]) -> list[Value]:
    """Return the length of the second of two groups at each byte; ``after`` are the next word's lengths."""
    both = [*lengths, *after]
    return [_looked_up(both[at : at + GROUP_NBYTES + 1], length) for at, length in enumerate(lengths)]


def _looked_up(entries: Sequence[Value], index: Value) -> Value:
    """Return an entry of a table, selected bit by bit. Otherwise, synthesis would use a multiplication."""
    return Cat(Cat(entry[bit] for entry in entries).bit_select(index, 1) for bit in range(len(entries[0])))


def _held(stage: Pipeline, values: Sequence[Value]) -> list[Value]:
    """Return registers of values of equal width."""
    held, bits = stage.hold(Cat(values)), len(values[0])
    return [held[bits * at : bits * (at + 1)] for at in range(len(values))]


class InceptionnDecompressor(Circuit):
    """A decompressor from payloads of ``codec`` to float32, packet by packet.

    A payload doesn't contain the number of values in its last group. So all eight values are decoded, with 0
    for padding, and the frame has the count. After the ``GroupFinder``, two stages shift each group to bit 0,
    and three stages halve the group until each lane has its own bytes. One stage finds the highest set bit,
    which determines exponent and mantissa at the input of a memory. The memory reserves an entry for every
    word in flight, so these stages never stall.
    """

    def __init__(self, codec: Inceptionn, width: int = 256) -> None:
        self._classes = Classes.of(codec)
        super().__init__(block_ports(width))

    def _describe(self, m: Module) -> None:
        out = self.m_axis
        groups = len(out.tdata) // LANE_BITS // GROUP_LANES
        m.submodules.finder = finder = GroupFinder(len(out.tdata))
        wiring.connect(m, wiring.flipped(self.s_axis), finder.s_axis)
        rebuilt = stream(len(out.tdata))
        leaving, has_room = counted_memory(m, "leaving", rebuilt, finder.valid, late=1)
        wiring.connect(m, leaving, wiring.flipped(out))
        stage = Pipeline(m, Const(1))
        m.d.comb += finder.ready.eq(has_room)

        bits, size = len(finder.starts) // groups, len(out.tkeep)
        # The first group begins in the current word, and each following group at most a group's length later.
        reach = [(size - 1 + group * GROUP_NBYTES).bit_length() for group in range(groups)]
        starts = [finder.starts.word_select(group, bits)[:most] for group, most in enumerate(reach)]
        fine = [stage.hold(start[:2]) for start in starts]
        found = [
            stage.hold(shift_right_bytes(finder.window, start[2:], GROUP_NBYTES + COARSE - 1, unit=COARSE))
            for start in starts
        ]
        # A group's first byte has the tags of its lower half, whose sizes are summed during the shift.
        firsts = [shift_right_bytes(group, rest, 1) for group, rest in zip(found, fine, strict=True)]
        sizes = [
            stage.hold(size_of_lanes([first.word_select(lane, 2) for lane in range(GROUP_LANES // 2)]))
            for first in firsts
        ]
        found = [
            stage.hold(shift_right_bytes(group, rest, GROUP_NBYTES))
            for group, rest in zip(found, fine, strict=True)
        ]
        tags = [group.word_select(lane, 2) for group in found for lane in range(GROUP_LANES)]
        pieces: list[Value] = [group[2 * GROUP_LANES :] for group in found]
        pieces, tags = split(stage, pieces, tags, sizes)
        values = [_decoded(stage, self._classes, *each) for each in zip(tags, pieces, strict=True)]
        valid, last = stage.delay(finder.valid, 6, resets=True), stage.delay(finder.last, 6)
        keep = Cat(each.replicate(4 * GROUP_LANES) for each in stage.delay(finder.present, 6))
        m.d.comb += send(rebuilt, Cat(values), keep, last, valid)


def size_of_lanes(tags: Sequence[Value]) -> Value:
    """Return the number of bytes of a group of lanes, whose number is a power of two, from their tags."""
    if len(tags) == 1:
        return Cat(tags[0] == 1, tags[0] == 2, tags[0] == 3)
    if len(tags) == 2:
        return SIZES_OF_TWO.word_select(Cat(*tags), 4)
    half = len(tags) // 2
    return size_of_lanes(tags[:half]) + size_of_lanes(tags[half:])


def lower_sizes(tags: Sequence[Value], pieces: int) -> list[Value]:
    """Return the number of bytes in the lower half of the lanes of each of ``pieces`` pieces."""
    lanes = len(tags) // pieces
    bits = (4 * (lanes // 2)).bit_length()
    return [size_of_lanes(tags[at : at + lanes // 2])[:bits] for at in range(0, len(tags), lanes)]


def halved(stage: Pipeline, pieces: Sequence[Value], sizes: Sequence[Value]) -> list[Value]:
    """Return the registers of both halves of each piece, where the lower halves have ``sizes`` bytes."""
    halves = []
    for piece, size in zip(pieces, sizes, strict=True):
        nbytes = len(piece) // 16
        halves += [stage.hold(piece[: 8 * nbytes]), stage.hold(shift_right_bytes(piece, size, nbytes))]
    return halves


def split(
    stage: Pipeline, pieces: list[Value], tags: list[Value], sizes: list[Value]
) -> tuple[list[Value], list[Value]]:
    """Halve pieces stage by stage, by the ``sizes`` of lower halves, to a piece per lane; return their tags.

    A single lane's size isn't a sum: computed from the tag's four values, its shift is a smaller circuit.
    """
    while len(pieces) < len(tags):
        pieces = halved(stage, pieces, sizes)
        held = [stage.hold(tag) for tag in tags]
        if 2 * len(pieces) < len(tags):
            sizes = [stage.hold(size) for size in lower_sizes(tags, len(pieces))]
        elif len(pieces) < len(tags):
            sizes = lower_sizes(held, len(pieces))
        tags = held
    return pieces, tags


def _decoded(stage: Pipeline, classes: Classes, tag: Value, piece: Value) -> Value:
    """Return a float32 from registers one stage after its tag and bytes."""
    is_two = tag == 2
    magnitude = Mux(is_two, piece[:15], Cat(Const(0, 8), piece[:7]))
    sign = Mux(is_two, piece[15], piece[7])
    zeros = stage.hold(leading_zeros(Cat(Const(1, 1), magnitude)))
    bits = stage.hold(Mux(tag == 3, piece, Cat(magnitude, sign)))
    is_raw = stage.hold(tag == 3)
    is_zero = stage.hold((tag == 0) | ((tag != 3) & (magnitude == 0)))
    base = stage.hold(Mux(is_two, 127, classes.base))
    exponent = (base - zeros - 1)[:8]
    mantissa = (bits[:15] << zeros)[:14]
    return Mux(is_raw, bits, Mux(is_zero, 0, Cat(Const(0, 9), mantissa, exponent, bits[15])))
