"""The compressor and the decompressor of ``errbound``, in which a chunk's data wait for its tags."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from gradwire.codecs import ErrBound
from gradwire_gateware import LANE_BITS
from gradwire_gateware.errbound import relative
from gradwire_gateware.errbound.share import Steps
from gradwire_gateware.inceptionn.compressor import joined, size_of
from gradwire_gateware.inceptionn.decompressor import lower_sizes, size_of_lanes, split
from gradwire_gateware.packer import Packer
from gradwire_gateware.queues import Queue, counted_memory
from gradwire_gateware.sections import Countdown, cut, join, store
from gradwire_gateware.stream import (
    COARSE,
    Circuit,
    Pipeline,
    block_ports,
    count_kept,
    leading_zeros,
    send,
    shift_right_bytes,
    stream,
    sum_of,
)

_QUARTET = 4
"""The number of values whose tags share a byte."""
_UNLIMITED = 239
"""The largest biased exponent of a bound at which no code of two bytes overflows."""


class ErrBoundCompressor(Circuit):
    """A compressor of float32 packets to payloads of ``codec``.

    A packet longer than a chunk gives several payloads. The stages are: the shift distance; the value in
    steps; rounding; the size class; and three or four stages that join the lanes. Tags and data are packed
    separately. Tags and data wait in memories for two chunks of ``chunk_words`` words, so that one chunk
    enters while the previous chunk leaves, tags first. With relative bounds, words first wait for their
    block's bound, and the bounds leave before the tags.
    """

    def __init__(self, codec: ErrBound, width: int = 256, *, chunk_words: int = 512) -> None:
        self._codec, self._chunk_words = codec, chunk_words
        if codec.relative is not None:
            relative.check(codec, chunk_words * width // LANE_BITS)
        super().__init__(block_ports(width))

    def _describe(self, m: Module) -> None:
        width = len(self.s_axis.tdata)
        lanes = width // LANE_BITS
        m.submodules.tags = tag_packer = Packer(width, lanes // _QUARTET, lanes // _QUARTET)
        m.submodules.data = data_packer = Packer(width, width // 8)
        packers = [tag_packer, data_packer]
        if self._codec.relative is not None:
            m.submodules.exponents = exponent_packer = Packer(width, 1)
            packers.insert(0, exponent_packer)
        ready = reduce(Value.__and__, (packer.ready for packer in packers))
        stage = Pipeline(m, ready)
        nbytes = [self._chunk_words * lanes // _QUARTET, self._chunk_words * width // 8]
        if self._codec.relative is not None:
            nbytes.insert(0, -(-self._chunk_words * lanes // (self._codec.block or 65536)))
        more = 0 if self._codec.relative is None else relative.ON_THEIR_WAY
        sections, has_room = store(m, packers, [-(-most * 8 // width) for most in nbytes], more)
        word = self._words(m, ready, has_room)

        steps = Steps.of(self._codec) if self._codec.relative is None else _steps_of(stage, word.bound)
        coded = [_coded(stage, steps, word.lanes.word_select(lane, LANE_BITS)) for lane in range(lanes)]
        tags: Value = Cat(tag for tag, _ in coded)
        quartets = ((word.count + _QUARTET - 1) >> 2)[:3]
        valid, marks = word.valid, Cat(word.ends, quartets, word.needs_bound, word.bound)
        valid, marks = stage.delay(valid, 4, resets=True), stage.delay(marks, 4)
        pieces = [(bits, size_of(m, tag)) for tag, bits in coded]
        while len(pieces) > 1:
            pieces = joined(stage, pieces)
            valid, marks, tags = stage.hold(valid, resets=True), stage.hold(marks), stage.hold(tags)
        groups = [(tags, marks[1:4]), pieces[0]]
        if self._codec.relative is not None:
            has_bound, bound = marks[4], marks[5:]
            groups.insert(0, (Mux(has_bound, bound, 0), has_bound))
        for packer, (data, count) in zip(packers, groups, strict=True):
            m.d.comb += packer.take(data, count, marks[0], valid & ready)
        join(m, sections, self.m_axis)

    def _words(self, m: Module, ready: Value, has_room: Value) -> relative.Word:
        """Return the input words and, for a relative codec, the bounds of their blocks."""
        come = self.s_axis
        if self._codec.relative is not None:
            return relative.waiting(m, self._codec, come, has_room, ready, self._chunk_words)
        m.d.comb += come.tready.eq(ready & has_room)
        index = Signal(range(self._chunk_words))
        ends = come.tlast | (index == self._chunk_words - 1)
        with m.If(come.tvalid & come.tready):
            m.d.sync += index.eq(Mux(ends, 0, index + 1))
        keep, kept = relative.kept_lanes(m, come)
        none = Const(0, 0)
        return relative.Word(kept, count_kept(keep), ends, none, none, come.tvalid & has_room)


def _steps_of(stage: Pipeline, bound: Value) -> Steps:
    """Return a bound's steps, whose limits are in registers three stages after the exponent."""
    cut = stage.hold(Mux(bound > _UNLIMITED, bound - _UNLIMITED, 0)[:4])
    limit = stage.hold(stage.hold(Const(32767, 15) >> cut))
    return Steps(bound, (limit[:7], limit))


def _coded(stage: Pipeline, steps: Steps, x: Value) -> tuple[Value, Value]:
    """Return the registers of a float32's tag and encoded bits, four stages later.

    A value of exponent ``E + 1``, where E is the bound's exponent, is at least one step. The value is shifted
    so that 15 bits are whole steps; values below half a step become 0.
    """
    exponent = x[23:31]
    above = exponent - (steps.exponent + 1)  # the position of the highest bit among whole steps
    is_large = stage.hold((exponent > steps.exponent + 15) | (exponent == 255))
    is_small, distance = stage.hold_all(exponent < steps.exponent, (14 - above)[:4])
    significand, sign, raw = stage.hold_all(Cat(x[:23], Const(1, 1)), x[31], x)

    # With a distance of 0, the highest bit is 2^14 steps; with 15, half a step.
    exact = (Cat(Const(0, 15), significand) >> distance)[:39]
    whole, half, sticky, is_large = stage.hold_all(exact[24:39], exact[23], exact[:23].any(), is_large)
    is_small, sign, raw = stage.hold_all(is_small, sign, raw)

    magnitude = stage.hold(Mux(is_small, 0, (whole + (half & (sticky | whole[0])))[:16]))
    is_large, sign, raw = stage.hold(is_large), stage.hold(sign), stage.hold(raw)

    is_raw, is_two = is_large | _exceeds(magnitude, steps.limits[1]), _exceeds(magnitude, steps.limits[0])
    code = Mux(sign, -magnitude, magnitude)[:16]
    tag = stage.hold(Mux(is_raw, 3, Mux(is_two, 2, magnitude != 0))[:2])
    bits = Mux(is_raw, raw, Mux(is_two, code, code[:8]))
    return tag, stage.hold(bits)


def _exceeds(magnitude: Value, limit: int | Value) -> Value:
    """Return whether ``magnitude`` exceeds ``limit``, a power of two minus one."""
    low = Value.cast(limit)
    return (magnitude & ~Cat(low, Const(0, len(magnitude) - len(low)))).any()


# The decompressor: a chunk's tags wait, and determine how its data are split.


class ErrBoundDecompressor(Circuit):
    """A decompressor from payloads of ``codec`` to ``values`` float32, packet by packet.

    A payload lacks its count, so ``values``, at most ``chunk_words`` words, must be valid with its words.
    For each word, its lanes' sizes are summed in advance, so that one addition gives the next offset.
    An invalid packet gives ``values`` wrong values, and doesn't affect the next packet.
    """

    def __init__(self, codec: ErrBound, width: int = 256, *, chunk_words: int = 512) -> None:
        self._codec = codec
        self._most = chunk_words * width // LANE_BITS
        super().__init__({**block_ports(width), "values": In(range(self._most + 1))})

    def _describe(self, m: Module) -> None:
        sections, counts = self._apart(m)
        self._cut(m, *sections, counts)

    def _apart(self, m: Module) -> tuple[list[Any], Queue]:
        """Return the streams of exponents (if bounds are relative), tags and data, and a queue of counts."""
        come, width = self.s_axis, len(self.s_axis.tdata)
        most_tags = -(-self._most // _QUARTET)
        counts = Queue(m, "counts", {"values": len(self.values)})
        count = (self.values + _QUARTET - 1) >> 2
        most_data = 4 * self._most
        sizes: list[tuple[Value, int]] = [(count, most_tags)]
        if self._codec.relative is not None:
            sizes.insert(0, self._exponents())
        depths = [2 * -(-most * 8 // width) for _, most in sizes]
        sections = [(*size, depth) for size, depth in zip(sizes, depths, strict=True)]
        streams = cut(m, come, counts.has_room, [*sections, (Const(most_data), most_data, 16)])
        within = Signal()
        with m.If(come.tvalid & come.tready):
            m.d.sync += within.eq(~come.tlast)
        counts.put(come.tvalid & come.tready & ~within, values=self.values)
        return streams, counts

    def _exponents(self) -> tuple[Value, int]:
        """Return the number of exponents in a packet, and its maximum."""
        block = self._codec.block
        if block is None:
            return Const(1), 1
        return (self.values + (block - 1)) >> (block.bit_length() - 1), -(-self._most // block)

    def _bound(
        self, m: Module, exponents: Sequence[Any], moves: Value, is_last: Value
    ) -> tuple[Value, Value]:
        """Return the exponent of the next word's bound, consumed by ``moves``, and whether it is valid."""
        if not exponents:
            return Const(0, 8), Const(1, 1)
        (stream,) = exponents
        size, block = len(stream.tkeep), self._codec.block
        index, closes = Signal(range(size)), Signal()
        if block is not None:
            words = 4 * block // size
            word = Signal(range(words))
            m.d.comb += closes.eq(word == words - 1)
            with m.If(moves):
                m.d.sync += word.eq(Mux(is_last, 0, word + 1))
        with m.If(moves):
            m.d.sync += index.eq(Mux(is_last, 0, index + closes))
        leaves = closes & (index == size - 1) & ~stream.tlast
        m.d.comb += stream.tready.eq(moves & (is_last | leaves))
        return stream.tdata.word_select(index, 8), stream.tvalid

    def _lengths(self, m: Module, *sections: Any) -> Queue:
        """Read the tags of one word of float32 at a time, and sum their sizes, without stalls."""
        *exponents, tags, counts = sections
        width = len(self.s_axis.tdata)
        lanes = width // LANE_BITS
        words = width // (2 * lanes)
        fields = {"tags": 2 * lanes, "length": (4 * lanes).bit_length(), "last": 1, "keep": lanes}
        if exponents:
            fields["bound"] = 8
        lengths = Queue(m, "lengths", fields)
        stage = Pipeline(m, Const(1))
        index, moves = Signal(range(words)), Signal()
        rest = Countdown(m, counts, lanes, moves)
        is_last = rest.is_last
        bound, has_bound = self._bound(m, exponents, moves, is_last)
        m.d.comb += [
            moves.eq(lengths.has_room & rest.has & tags.tvalid & has_bound),
            tags.tready.eq(moves & (is_last | ((index == words - 1) & ~tags.tlast))),
        ]
        with m.If(moves):
            m.d.sync += index.eq(Mux(is_last | (index == words - 1), 0, index + 1))
        mask = Cat(bit.replicate(2) for bit in rest.kept)
        found = stage.hold(tags.tdata.word_select(index, 2 * lanes) & mask)
        valid, last, keep = stage.hold(moves, resets=True), stage.hold(is_last), stage.hold(rest.kept)
        each = [found.word_select(lane, 2) for lane in range(lanes)]
        quarters = [stage.hold(size_of_lanes(each[at : at + 4])) for at in range(0, lanes, 4)]
        found, valid, last, keep = (
            stage.hold(found), stage.hold(valid, resets=True), stage.hold(last), stage.hold(keep)
        )  # fmt: skip
        given = {"bound": stage.hold(stage.hold(bound))} if exponents else {}
        lengths.put(valid, tags=found, length=sum_of(quarters), last=last, keep=keep, **given)
        return lengths

    def _cut(self, m: Module, *sections: Any) -> None:
        """Extract the data of one word of float32 at a time, and decode its values."""
        *others, data, counts = sections
        width = len(self.s_axis.tdata)
        lanes, size = width // LANE_BITS, width // 8
        lengths = self._lengths(m, *others, counts)
        fires, rebuilt = Signal(), stream(width)
        leaving, has_room = counted_memory(m, "leaving", rebuilt, fires)
        known, takes = Signal(), Signal()

        # The start and end offsets of the word's data in the current data word; the end is known one cycle
        # ahead.
        fetch, following = Pipeline(m, takes), lengths.first
        last = fetch.hold(following.last)
        place, end, crosses = Signal(range(size)), Signal(range(2 * size)), Signal()
        begins = Mux(known, Mux(last, 0, end[: len(place)]), place)
        next_end = Signal.like(end)
        m.d.comb += [
            next_end.eq(begins + following.length),
            takes.eq(~known | fires),
            lengths.takes.eq(takes),
        ]
        with m.If(takes):
            m.d.sync += [place.eq(begins), end.eq(next_end), crosses.eq(next_end > size)]
        m.d.comb += known.eq(fetch.hold(lengths.has, resets=True))
        found, keep = fetch.hold(following.tags), fetch.hold(following.keep)
        if self._codec.relative is None:
            bound: Value = Const(Steps.of(self._codec).exponent, 8)
        else:
            bound = fetch.hold(following.bound)
        wraps = end[len(place)]

        current, current_last, has_current = Signal(width, reset_less=True), Signal(), Signal()
        skips, leaves, loads = Signal(), Signal(), Signal()
        m.d.comb += [
            fires.eq(has_room & known & has_current & (~crosses | data.tvalid | current_last)),
            leaves.eq(fires & (last | (wraps & ~current_last))),
            loads.eq(data.tvalid & ~skips & ((leaves & ~last) | ~has_current)),
            data.tready.eq(loads | skips),
        ]
        with m.If(loads):
            m.d.sync += [current.eq(data.tdata), current_last.eq(data.tlast), has_current.eq(1)]
        with m.Elif(leaves):
            m.d.sync += has_current.eq(0)
        with m.If(fires & last & ~current_last):
            m.d.sync += skips.eq(1)
        with m.Elif(data.tvalid & data.tlast):
            m.d.sync += skips.eq(0)

        stage = Pipeline(m, Const(1))
        fine = stage.hold(place[:2])
        window = Cat(current, data.tdata)
        piece = stage.hold((window >> Cat(Const(0, 5), place[2:]))[: 8 * (size + COARSE - 1)])
        found = stage.hold(found)
        each = [found.word_select(lane, 2) for lane in range(lanes)]
        piece = stage.hold(shift_right_bytes(piece, fine, size))
        sizes = [stage.hold(lower) for lower in lower_sizes(each, 1)]
        pieces, each = split(stage, [piece], [stage.hold(tag) for tag in each], sizes)
        stages = 2 + lanes.bit_length() - 1
        if self._codec.relative is not None:
            bound = stage.delay(bound, stages + 2)
        values = [_decoded(stage, bound, tag, bits) for tag, bits in zip(each, pieces, strict=True)]
        valid, last = stage.delay(fires, stages + 3, resets=True), stage.delay(last, stages + 3)
        keep = Cat(bit.replicate(LANE_BITS // 8) for bit in stage.delay(keep, stages + 3))
        m.d.comb += send(rebuilt, Cat(values), keep, last, valid)
        wiring.connect(m, leaving, wiring.flipped(self.m_axis))


def _decoded(stage: Pipeline, bound: Value, tag: Value, piece: Value) -> Value:
    """Return the register of a float32, three stages after its tag and bytes, one stage after its bound."""
    code = Mux(tag == 2, piece[:16], Cat(piece[:8], piece[7].replicate(8)))
    sign = stage.hold(code[15])
    magnitude = stage.hold(Mux(code[15], -code, code)[:16])
    tag, piece = stage.hold(tag), stage.hold(piece)

    zeros = stage.hold(leading_zeros(magnitude))
    is_zero = stage.hold((tag == 0) | (magnitude == 0))
    is_raw = stage.hold(tag == 3)
    magnitude, sign, piece = stage.hold_all(magnitude, sign, piece)

    exponent = bound + 16 - zeros
    mantissa = (magnitude << zeros)[:15]
    value = Mux(exponent >= 255, Const(255 << 23, 31), Cat(Const(0, 8), mantissa, exponent[:8]))
    return stage.hold(Mux(is_raw, piece, Mux(is_zero, 0, Cat(value[:31], sign))))
