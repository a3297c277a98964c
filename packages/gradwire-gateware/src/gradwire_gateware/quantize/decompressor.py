"""The decompressor of ``quantize``: a chunk's scales wait, and each one is used for its block's words."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib.wiring import In

from gradwire.codecs import Quantize
from gradwire_gateware import LANE_BITS
from gradwire_gateware.quantize.code import SCALE_NBYTES, VALUE_LATENCY, QuantizeLayout, value_of
from gradwire_gateware.queues import Queue
from gradwire_gateware.sections import Countdown, cut
from gradwire_gateware.stream import Circuit, Pipeline, block_ports, send


class QuantizeDecompressor(Circuit):
    """A decompressor from payloads of ``codec`` to ``values`` float32, packet by packet.

    ``values`` must be valid with the packet's words, because a payload doesn't contain its number of scales;
    the values fill at most ``chunk_words`` words. A packet's first word waits one cycle, in which its scales
    are counted. An invalid packet gives wrong values, but ``values`` of them, and doesn't affect the next
    packet.
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
        """Multiply codes by their block's scale, one word of float32 at a time."""
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

    The inverse is rounded up, with enough bits that this error doesn't reach the next quotient.
    """
    shift = len(value) + (by - 1).bit_length()
    return (value * -(-(1 << shift) // by)) >> shift
