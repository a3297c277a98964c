"""The decompressor of ``errbound``: a chunk's tags wait, and each word of them cuts the data that follow."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from gradwire.codecs import ErrBound
from gradwire.gateware.errbound.steps import Steps
from gradwire.gateware.inceptionn_decompressor import halved
from gradwire.gateware.nic.packets import clipped
from gradwire.gateware.nic.queues import Queue, memory
from gradwire.gateware.nic.trim import Trim
from gradwire.gateware.stream import (
    Pipeline,
    block_ports,
    first_bytes,
    leading_zeros,
    shift_right_bytes,
)
from gradwire.gateware.words import LANE_BITS

_QUARTET = 4
_COARSE = 4
"""Data are moved to the bottom by multiples of this many bytes first, then by the rest."""


class ErrBoundDecompressor(wiring.Component):
    """The payload of ``codec`` in, ``values`` float32 out, packet by packet.

    A payload doesn't say how many values it has, so ``values`` must be there with the packet's words; at
    most, they fill ``chunk_words`` words. Tags and data are cut apart. For each word, the sizes of its lanes
    are added up in advance, so that one addition finds the next one's data. A packet that isn't a payload
    gives wrong values, but as many, and the next packet is whole.
    """

    def __init__(self, codec: ErrBound, width: int = 256, *, chunk_words: int = 512) -> None:
        self._steps, self._chunk_words = Steps.of(codec), chunk_words
        self._most = chunk_words * width // LANE_BITS
        super().__init__({**block_ports(width), "values": In(range(self._most + 1))})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
        tags, data, counts = self._apart(m)
        self._cut(m, tags, data, counts)
        return m

    def _apart(self, m: Module) -> tuple[Any, Any, Queue]:
        """Return the streams of tags and of data, and the values of each packet."""
        come, width = self.s_axis, len(self.s_axis.tdata)
        most_tags = -(-self._most // _QUARTET)
        m.submodules.tags = tags = Trim(width, 0, most_tags)
        m.submodules.data = data = Trim(width, most_tags, most_tags + 4 * self._most)
        counts = Queue(m, "counts", {"values": len(self.values)})
        within = Signal()
        count = (self.values + _QUARTET - 1) >> 2
        both = tags.s_axis.tready & data.s_axis.tready
        m.d.comb += [come.tready.eq(both), tags.nbytes.eq(count), data.skip.eq(count), data.nbytes.eq(-1)]
        for trim in (tags, data):
            m.d.comb += [
                Cat(trim.s_axis.tdata, trim.s_axis.tkeep, trim.s_axis.tlast).eq(
                    Cat(come.tdata, come.tkeep, come.tlast)
                ),
                trim.s_axis.tvalid.eq(come.tvalid & both),
                trim.told.eq(counts.has_room),
                trim.wanted.eq(1),
            ]
        with m.If(come.tvalid & both):
            m.d.sync += within.eq(~come.tlast)
        counts.put(come.tvalid & both & ~within, values=self.values)
        depth = 2 * -(-most_tags * 8 // width) + 8
        return memory(m, "tags_wait", tags.m_axis, depth), memory(m, "data_wait", data.m_axis, 16), counts

    def _cut(self, m: Module, tags: Any, data: Any, counts: Queue) -> None:
        """Read the tags of a word of float32 at a time, and cut its data."""
        out, width = self.m_axis, len(self.s_axis.tdata)
        lanes, size = width // LANE_BITS, width // 8
        words = width // (2 * lanes)
        ready, fires = Signal(), Signal()
        known, takes = Signal(), Signal()

        # The tags of the next word, and the sum of its sizes.
        fetch = Pipeline(m, takes)
        index, within, left = Signal(range(words)), Signal(), Signal(len(self.values))
        rest = Mux(within, left, counts.first.values)
        is_last = rest <= lanes
        has = counts.has & tags.tvalid
        m.d.comb += [
            counts.takes.eq(takes & has & is_last),
            tags.tready.eq(takes & has & (is_last | ((index == words - 1) & ~tags.tlast))),
        ]
        with m.If(takes & has):
            m.d.sync += [
                within.eq(~is_last),
                left.eq(rest - lanes),
                index.eq(Mux(is_last | (index == words - 1), 0, index + 1)),
            ]
        kept = Signal(lanes)
        m.d.comb += kept.eq(first_bytes(clipped(rest, lanes), lanes))
        mask = Cat(bit.replicate(2) for bit in kept)
        found = fetch.hold(tags.tdata.word_select(index, 2 * lanes) & mask)
        valid, last, keep = fetch.hold(has, resets=True), fetch.hold(is_last), fetch.hold(kept)
        sizes = [_size(found.word_select(lane, 2)) for lane in range(lanes)]
        quarters = [fetch.hold(_sum(sizes[at : at + 4])) for at in range(0, lanes, 4)]
        found, valid, last, keep = (
            fetch.hold(found), fetch.hold(valid, resets=True), fetch.hold(last), fetch.hold(keep)
        )  # fmt: skip
        length = fetch.hold(_sum(quarters))
        found, last, keep = fetch.hold(found), fetch.hold(last), fetch.hold(keep)
        valid = fetch.hold(valid, resets=True)
        m.d.comb += [known.eq(valid), takes.eq(~known | fires)]

        # Where its data begin in the current word of data.
        current, current_last, has_current = Signal(width, reset_less=True), Signal(), Signal()
        place, skips = Signal(range(size)), Signal()
        end = Signal(range(2 * size))
        leaves, loads = Signal(), Signal()
        m.d.comb += [
            end.eq(place + length),
            fires.eq(ready & known & has_current & ((end <= size) | data.tvalid | current_last)),
            leaves.eq(fires & (last | ((end >= size) & ~current_last))),
            loads.eq(data.tvalid & ~skips & ((leaves & ~last) | ~has_current)),
            data.tready.eq(loads | skips),
        ]
        with m.If(fires):
            m.d.sync += place.eq(Mux(last, 0, end[: len(place)]))
        with m.If(loads):
            m.d.sync += [current.eq(data.tdata), current_last.eq(data.tlast), has_current.eq(1)]
        with m.Elif(leaves):
            m.d.sync += has_current.eq(0)
        with m.If(fires & last & ~current_last):
            m.d.sync += skips.eq(1)
        with m.Elif(data.tvalid & data.tlast):
            m.d.sync += skips.eq(0)

        stage = Pipeline(m, ready)
        m.d.comb += ready.eq(~out.tvalid | out.tready)
        fine = stage.hold(place[:2])
        window = Cat(current, data.tdata)
        piece = stage.hold((window >> Cat(Const(0, 5), place[2:]))[: 8 * (size + _COARSE - 1)])
        found = stage.hold(found)
        piece = stage.hold(shift_right_bytes(piece, fine, size))
        found = stage.hold(found)
        stages = 2
        each = [found.word_select(lane, 2) for lane in range(lanes)]
        pieces: list[Value] = [piece]
        while len(pieces) < lanes:
            pieces = halved(stage, pieces, each)
            each = [stage.hold(tag) for tag in each]
            stages += 1
        values = [_decoded(stage, self._steps, tag, bits) for tag, bits in zip(each, pieces, strict=True)]
        valid = fires
        for _ in range(stages + 3):
            valid, last, keep = stage.hold(valid, resets=True), stage.hold(last), stage.hold(keep)
        m.d.comb += [
            out.tdata.eq(Cat(values)),
            out.tkeep.eq(Cat(bit.replicate(LANE_BITS // 8) for bit in keep)),
            out.tlast.eq(last),
            out.tvalid.eq(valid),
        ]


def _size(tag: Value) -> Value:
    return Cat(tag == 1, tag == 2, tag == 3)


def _sum(values: list[Value]) -> Value:
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return _sum(values[:half]) + _sum(values[half:])


def _decoded(stage: Pipeline, steps: Steps, tag: Value, piece: Value) -> Value:
    """Return the register of a float32, three stages after its tag and bytes."""
    code = Mux(tag == 2, piece[:16], Cat(piece[:8], piece[7].replicate(8)))
    sign = stage.hold(code[15])
    magnitude = stage.hold(Mux(code[15], -code, code)[:16])
    tag, piece = stage.hold(tag), stage.hold(piece)

    zeros = stage.hold(leading_zeros(magnitude))
    is_zero = stage.hold((tag == 0) | (magnitude == 0))
    is_raw, magnitude = stage.hold(tag == 3), stage.hold(magnitude)
    sign, piece = stage.hold(sign), stage.hold(piece)

    exponent = steps.exponent + 16 - zeros
    mantissa = (magnitude << zeros)[:15]
    value = Mux(exponent >= 255, Const(255 << 23, 31), Cat(Const(0, 8), mantissa, exponent[:8]))
    return stage.hold(Mux(is_raw, piece, Mux(is_zero, 0, Cat(value[:31], sign))))
