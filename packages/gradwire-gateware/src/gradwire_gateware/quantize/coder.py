"""The compressor and the decompressor of ``quantize``, in which codes and blocks wait for scales."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import In

from gradwire.codecs import Quantize
from gradwire_gateware import LANE_BITS
from gradwire_gateware.packer import Packer, find_peaks, peaks_latency
from gradwire_gateware.quantize.code import (
    CODE_LATENCY,
    SCALE_BITS,
    SCALE_NBYTES,
    VALUE_LATENCY,
    QuantizeLayout,
    code_of,
    scale_latency,
    scale_of,
    value_of,
)
from gradwire_gateware.queues import Queue
from gradwire_gateware.sections import Countdown, cut, join, store
from gradwire_gateware.stream import Circuit, Pipeline, block_ports, count_kept, send

_MARGIN = 6
"""The largest latency in cycles of a scale, and of its block's words, through the memories."""
_INVERSE_BITS = 31


class QuantizeCompressor(Circuit):
    """A compressor of float32 packets to payloads of ``codec``, several for a packet longer than a chunk.

    A block's words wait for its scale and inverse. Each lane has a multiplier, and two stages that round as
    a CPU does: to a float32, and then to a code. Scales and codes wait in memories for two chunks, so that
    one chunk enters while the previous chunk leaves, scales first.
    """

    def __init__(self, codec: Quantize, width: int = 256, *, chunk_words: int = 512) -> None:
        self._codec, self._layout = codec, QuantizeLayout.of(codec, width, chunk_words)
        super().__init__(block_ports(width))

    def _describe(self, m: Module) -> None:
        layout, width = self._layout, len(self.s_axis.tdata)
        values, scales = self._take_in(m)
        m.submodules.scales = scale_packer = Packer(width, SCALE_NBYTES, SCALE_NBYTES)
        m.submodules.codes = code_packer = Packer(width, layout.nbytes, layout.nbytes)
        nbytes = (layout.most_scales_nbytes, layout.most_codes_nbytes)
        packers = (scale_packer, code_packer)
        sections, has_room = store(m, packers, [layout.words_of(each) for each in nbytes])
        _encode(m, layout, values, scales, *packers, has_room)
        join(m, sections, self.m_axis)

    def _take_in(self, m: Module) -> tuple[Queue, Queue]:
        """Return the queues of words with their marks, and of scales with their inverses."""
        come, layout = self.s_axis, self._layout
        latency = peaks_latency(layout.lanes) + scale_latency(self._codec)
        most_scales = 2 * (latency + _MARGIN)
        depth = layout.words + latency + _MARGIN
        fields = {"word": len(come.tdata), "marks": 3 + layout.lanes.bit_length()}
        values = Queue(m, "blocks", fields, depth, depth - 1)
        fields = {"both": SCALE_BITS + _INVERSE_BITS}
        scales = Queue(m, "found", fields, most_scales, most_scales - latency - 1)

        index, word = Signal(range(max(2, layout.words))), Signal(range(max(2, layout.chunk_words)))
        opens, moves = index == 0, come.tvalid & come.tready
        ends = come.tlast | (word == layout.chunk_words - 1)
        closes = ends | (index == layout.words - 1)
        m.d.comb += come.tready.eq(values.has_room & scales.has_room)
        with m.If(moves):
            m.d.sync += [index.eq(Mux(closes, 0, index + 1)), word.eq(Mux(ends, 0, word + 1))]
        keep = Signal(layout.lanes)
        m.d.comb += keep.eq(come.tkeep[:: LANE_BITS // 8])
        lanes = [Mux(keep[lane], come.tdata.word_select(lane, LANE_BITS), 0) for lane in range(layout.lanes)]
        needs_scale = opens & keep[0]
        values.put(moves, word=Cat(lanes), marks=Cat(needs_scale, closes, ends, count_kept(keep)))
        has_values = moves & keep[0]
        found, peak = find_peaks(m, [lane[:31] for lane in lanes], has_values, opens, closes)
        stage = Pipeline(m, Const(1))
        found = stage.delay(found, scale_latency(self._codec), resets=True)
        scales.put(found, both=Cat(scale_of(m, stage, self._codec, peak)))
        return values, scales


def _encode(
    m: Module,
    layout: QuantizeLayout,
    values: Queue,
    scales: Queue,
    scale_packer: Packer,
    code_packer: Packer,
    has_room: Value,
) -> None:
    """Pass the codes of queued words to one packer, and a block's scale, with its last word, to the other.

    These stages never stall: the groups divide a word, and the memories after the packers have room.
    """
    stage = Pipeline(m, Const(1))
    word, marks = values.first.word, values.first.marks
    needs_scale = marks[0]
    both = Signal(SCALE_BITS + _INVERSE_BITS)
    current = Mux(needs_scale, scales.first.both, both)
    valid = has_room & values.has & (~needs_scale | scales.has)
    m.d.comb += [values.takes.eq(valid), scales.takes.eq(valid & needs_scale)]
    with m.If(valid):
        m.d.sync += both.eq(current)

    word, current, marks = stage.hold(word), stage.hold(current), stage.hold(marks)
    valid = stage.hold(valid, resets=True)
    inverse = current[SCALE_BITS:]
    lanes = [word.word_select(lane, LANE_BITS) for lane in range(layout.lanes)]
    codes = Cat(code_of(stage, lane, inverse, layout.bits) for lane in lanes)
    scale, marks = stage.delay(current[:SCALE_BITS], CODE_LATENCY), stage.delay(marks, CODE_LATENCY)
    valid = stage.delay(valid, CODE_LATENCY, resets=True)
    closes, ends, count = marks[1], marks[2], marks[3:]
    scale = Mux(closes & (count != 0), Cat(Const(0, 31 - SCALE_BITS), scale), 0)
    m.d.comb += [
        *scale_packer.take(scale, Mux(closes & (count != 0), SCALE_NBYTES, 0), ends, valid),
        *code_packer.take(codes, (count * layout.bits + 7) >> 3, ends, valid),
    ]


# The decompressor: a chunk's scales wait, and each scale is used for its block's words.


class QuantizeDecompressor(Circuit):
    """A decompressor from payloads of ``codec`` to ``values`` float32, packet by packet.

    A payload lacks its number of scales, so ``values``, at most ``chunk_words`` words, must be valid with its
    words. An invalid packet gives ``values`` wrong values, and doesn't affect the next packet.
    """

    def __init__(self, codec: Quantize, width: int = 256, *, chunk_words: int = 512) -> None:
        self._layout = QuantizeLayout.of(codec, width, chunk_words)
        super().__init__({**block_ports(width), "values": In(range(self._layout.most_values + 1))})

    def _describe(self, m: Module) -> None:
        come, layout = self.s_axis, self._layout
        counts = Queue(m, "counts", {"values": len(self.values)})
        blocks, knows = Signal(range(layout.most_scales_nbytes // SCALE_NBYTES + 1)), Signal()
        moves = come.tvalid & come.tready
        with m.If(moves):
            m.d.sync += knows.eq(~come.tlast)
        with m.Elif(come.tvalid & counts.has_room):
            m.d.sync += knows.eq(1)
        with m.If(~knows):
            m.d.sync += blocks.eq(quotient(self.values + (layout.block - 1), layout.block))
        counts.put(come.tvalid & ~knows & counts.has_room, values=self.values)
        depth = 2 * layout.words_of(layout.most_scales_nbytes)
        scales, codes = cut(
            m,
            come,
            knows,
            [
                (blocks * SCALE_NBYTES, layout.most_scales_nbytes, depth),
                ((self.values * layout.bits + 7) >> 3, layout.most_codes_nbytes, 16),
            ],
        )
        self._decode(m, scales, codes, counts)

    def _decode(self, m: Module, scales: Any, codes: Any, counts: Queue) -> None:
        """Multiply codes by the scale of their block, one float32 word at a time."""
        out, layout = self.m_axis, self._layout
        lanes, size = layout.lanes, layout.nbytes * 8
        pieces = len(codes.tdata) // size
        ready = Signal()
        stage = Pipeline(m, ready)
        m.d.comb += ready.eq(~out.tvalid | out.tready)

        fires = Signal()
        rest = Countdown(m, counts, lanes, fires)
        place, word, index = (
            Signal(range(pieces)), Signal(range(max(2, layout.words))), Signal(range(lanes))
        )  # fmt: skip
        is_last = rest.is_last
        closes = is_last | (word == layout.words - 1)
        ends_codes, ends_scales = place == pieces - 1, closes & (index == lanes - 1)
        m.d.comb += [
            fires.eq(ready & rest.has & scales.tvalid & codes.tvalid),
            codes.tready.eq(fires & (is_last | (ends_codes & ~codes.tlast))),
            scales.tready.eq(fires & (is_last | (ends_scales & ~scales.tlast))),
        ]
        with m.If(fires):
            m.d.sync += [
                place.eq(Mux(is_last, 0, place + 1)),
                word.eq(Mux(closes, 0, word + 1)),
                index.eq(Mux(is_last, 0, index + closes)),
            ]
        scale = stage.hold(scales.tdata.word_select(index, LANE_BITS))
        piece = stage.hold(codes.tdata.word_select(place, size))
        values = [value_of(m, stage, piece.word_select(lane, layout.bits), scale) for lane in range(lanes)]
        latency = 1 + VALUE_LATENCY
        valid, last = stage.delay(fires, latency, resets=True), stage.delay(is_last, latency)
        keep = Cat(bit.replicate(LANE_BITS // 8) for bit in stage.delay(rest.kept, latency))
        m.d.comb += send(out, Cat(values), keep, last, valid)


def quotient(value: Value, by: int) -> Value:
    """Return ``value`` divided by a constant and rounded down, as a product with the constant's inverse.

    The inverse is rounded up, with enough bits that the error never changes a quotient.
    """
    shift = len(value) + (by - 1).bit_length()
    return (value * -(-(1 << shift) // by)) >> shift
