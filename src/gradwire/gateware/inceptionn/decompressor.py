"""The decompressor of ``inceptionn``: the groups of a payload, cut apart and decoded, eight lanes each."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth import Cat, Const, Module, Mux, Value
from amaranth.lib import wiring

from gradwire.codecs import Inceptionn
from gradwire.gateware.inceptionn.format import GROUP_LANES, GROUP_NBYTES, Classes
from gradwire.gateware.inceptionn.group_finder import SIZES_OF_TWO, GroupFinder
from gradwire.gateware.queues import counted_memory
from gradwire.gateware.stream import Pipeline, block_ports, leading_zeros, shift_right_bytes, stream
from gradwire.gateware.words import LANE_BITS

_COARSE = 4
"""A group is moved to the bottom by multiples of this many bytes first, then by the rest."""


class InceptionnDecompressor(wiring.Component):
    """The payload of ``codec`` in, float32 out, packet by packet.

    A payload does not say how many values its last group has, so that all eight come out, 0 for padding; the
    frame has the count. Behind the ``GroupFinder``, two stages move each group to the bottom, three halve it
    until each lane has its own bytes, and one finds the highest bit, from which exponent and mantissa follow
    as they go into a memory. That has a place for every word on its way, so nothing stops these stages.
    """

    def __init__(self, codec: Inceptionn, width: int = 256) -> None:
        self._classes = Classes.of(codec)
        super().__init__(block_ports(width))

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
        out = self.m_axis
        groups = len(out.tdata) // LANE_BITS // GROUP_LANES
        m.submodules.finder = finder = GroupFinder(len(out.tdata))
        wiring.connect(m, wiring.flipped(self.s_axis), finder.s_axis)
        rebuilt = stream(len(out.tdata))
        leaving, has_room = counted_memory(m, "leaving", rebuilt, finder.valid, late=1)
        wiring.connect(m, leaving, wiring.flipped(out))
        stage = Pipeline(m, Const(1))
        m.d.comb += finder.ready.eq(has_room)

        valid, last, present = finder.valid, finder.last, finder.present
        bits, size = len(finder.starts) // groups, len(out.tkeep)
        # The first group begins in the current word, and each other one at most a group's length later.
        reach = [(size - 1 + group * GROUP_NBYTES).bit_length() for group in range(groups)]
        starts = [finder.starts.word_select(group, bits)[:most] for group, most in enumerate(reach)]
        fine = [stage.hold(start[:2]) for start in starts]
        found = [
            stage.hold(shift_right_bytes(finder.window, start[2:], GROUP_NBYTES + _COARSE - 1, unit=_COARSE))
            for start in starts
        ]
        # The tags of a group's lower half are its first byte, whose size is added up while the group moves.
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
        for _ in range(6):
            valid, last, present = stage.hold(valid, resets=True), stage.hold(last), stage.hold(present)
        m.d.comb += [
            rebuilt.tdata.eq(Cat(values)),
            rebuilt.tkeep.eq(Cat(each.replicate(4 * GROUP_LANES) for each in present)),
            rebuilt.tlast.eq(last),
            rebuilt.tvalid.eq(valid),
        ]
        return m


def size_of_lanes(tags: Sequence[Value]) -> Value:
    """Return the bytes of some lanes, whose number is a power of two, by their tags."""
    if len(tags) == 1:
        return Cat(tags[0] == 1, tags[0] == 2, tags[0] == 3)
    if len(tags) == 2:
        return SIZES_OF_TWO.word_select(Cat(*tags), 4)
    half = len(tags) // 2
    return size_of_lanes(tags[:half]) + size_of_lanes(tags[half:])


def lower_sizes(tags: Sequence[Value], pieces: int) -> list[Value]:
    """Return the bytes of the lower half of the lanes of each of so many pieces."""
    lanes = len(tags) // pieces
    bits = (4 * (lanes // 2)).bit_length()
    return [size_of_lanes(tags[at : at + lanes // 2])[:bits] for at in range(0, len(tags), lanes)]


def halved(stage: Pipeline, pieces: Sequence[Value], sizes: Sequence[Value]) -> list[Value]:
    """Return registers of both halves of each piece, whose lower ones have so many bytes."""
    halves = []
    for piece, size in zip(pieces, sizes, strict=True):
        nbytes = len(piece) // 16
        halves += [stage.hold(piece[: 8 * nbytes]), stage.hold(shift_right_bytes(piece, size, nbytes))]
    return halves


def split(
    stage: Pipeline, pieces: list[Value], tags: list[Value], sizes: list[Value]
) -> tuple[list[Value], list[Value]]:
    """Return the pieces of each lane, and their tags, after as many stages as it takes to halve them.

    ``sizes`` are the first ``lower_sizes``; each stage adds up those of the next one. That of a single lane
    is no sum, and a shift by it is smaller where it follows from the tag, which has four values.
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
    """Return a float32, whose fields are registers a stage after its tag and bytes."""
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
