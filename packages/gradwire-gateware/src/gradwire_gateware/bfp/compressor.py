"""The compressor of ``bfp``: blocks wait until their largest exponent is known, and are rounded to it."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered

from gradwire.codecs.bfp import NAN_EXPONENT, SMALLEST_EXPONENT, Bfp
from gradwire_gateware import LANE_BITS
from gradwire_gateware.formats import BfpLayout
from gradwire_gateware.packer import Packer, find_peaks, peaks_latency
from gradwire_gateware.stream import Pipeline, block_ports

_PEAKS = 16
"""The exponents of blocks that can wait."""
_LATENCY = 4
"""Cycles from a block's last word, once its exponent is found, to both behind their memories, at most."""


class BfpCompressor(wiring.Component):
    """Float32 in, the payload of ``codec`` out, packet by packet.

    The words of a block go into a memory, and its exponent into another when the last of them is there; then
    the words come out again, while the next block goes in. Each stage of the search for the largest
    exponent halves the lanes. Behind the memories, a stage joins words and exponents; two find the distance
    of each value to the block's exponent and shift it; one rounds; two are those of the ``Packer``. The last
    block of a packet is filled up with zeros, a word in a cycle, and only then the next packet is taken.
    """

    def __init__(self, codec: Bfp, width: int = 256) -> None:
        self._layout = BfpLayout.of(codec, width)
        super().__init__(block_ports(width))

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
        come, layout = self.s_axis, self._layout
        width = len(come.tdata)
        m.submodules.packer = packer = Packer(width, layout.nbytes + 1)
        stages = peaks_latency(layout.lanes)
        depth = layout.words + stages + _LATENCY + 3
        m.submodules.values = values = SyncFIFOBuffered(width=width + 3, depth=depth)
        m.submodules.peaks = peaks = SyncFIFOBuffered(width=8, depth=_PEAKS)

        pads, index = Signal(), Signal(range(max(2, layout.words)))
        is_first, closes = index == 0, index == layout.words - 1
        is_null = ~pads & is_first & ~come.tkeep[0]
        room = Signal()
        moves = Signal()
        ends = pads | come.tlast
        # One more word may come before the register knows of it.
        m.d.sync += room.eq((values.level < depth - 1) & (peaks.level < _PEAKS - stages - 1))
        m.d.comb += [
            come.tready.eq(room & ~pads),
            moves.eq(room & (pads | come.tvalid)),
        ]
        with m.If(moves):
            m.d.sync += [
                index.eq(Mux(closes | is_null, 0, index + 1)),
                pads.eq(ends & ~closes & ~is_null),
            ]
        lanes = [
            Mux(~pads & come.tkeep[4 * lane], come.tdata.word_select(lane, LANE_BITS), 0)
            for lane in range(layout.lanes)
        ]
        m.d.comb += [
            values.w_data.eq(Cat(lanes, is_first, ends & (closes | is_null), is_null)),
            values.w_en.eq(moves),
        ]
        exponents = [lane[23:31] for lane in lanes]
        found, peak = find_peaks(m, exponents, moves, is_first, closes | is_null)
        m.d.comb += [peaks.w_en.eq(found), peaks.w_data.eq(peak)]
        _quantise(m, layout, values, peaks, packer)
        wiring.connect(m, packer.m_axis, wiring.flipped(self.m_axis))
        return m


def _quantise(
    m: Module, layout: BfpLayout, values: SyncFIFOBuffered, peaks: SyncFIFOBuffered, packer: Packer
) -> None:
    """Round the words that wait in ``values`` to the exponents of their blocks, and pack them."""
    stage = Pipeline(m, packer.ready)
    bits = layout.mantissa_bits
    is_null = values.r_data[LANE_BITS * layout.lanes + 2]
    left = Signal(range(layout.words + 1))
    exponent = Signal(8)
    has_peak = (left != 0) | peaks.r_rdy
    peak = Mux(left == 0, peaks.r_data, exponent)
    valid = values.r_rdy & has_peak
    takes = valid & packer.ready
    m.d.comb += [values.r_en.eq(packer.ready & has_peak), peaks.r_en.eq(takes & (left == 0))]
    with m.If(takes):
        m.d.sync += [exponent.eq(peak), left.eq(Mux(left == 0, Mux(is_null, 0, layout.words - 1), left - 1))]

    word, peak, valid = stage.hold(values.r_data), stage.hold(peak), stage.hold(valid, resets=True)
    is_zero = (peak < SMALLEST_EXPONENT) | (peak == NAN_EXPONENT)
    lanes = [word.word_select(lane, LANE_BITS) for lane in range(layout.lanes)]
    rounded = [_rounded(stage, lane, peak, is_zero, bits) for lane in lanes]
    opens, closes, null = word[LANE_BITS * layout.lanes :]
    byte = Mux((peak < SMALLEST_EXPONENT) | null, 0, peak)  # a null word's mantissas are 0
    # A bit that moves all mantissas, and its inverse: two registers, for half of them each.
    marks = Cat(byte, opens, closes, null, ~opens)
    valid = stage.hold(valid, resets=True)
    for _ in range(2):
        marks, valid = stage.hold(marks), stage.hold(valid, resets=True)
    marks = stage.hold(marks)
    mantissas = Cat(rounded)
    opened, half = Cat(marks[:8], mantissas), len(mantissas) // 2
    m.d.comb += [
        packer.data.eq(
            Cat(
                Mux(marks[8], opened[:half], mantissas[:half]),
                Mux(marks[11], mantissas[half:], opened[half:]),
            )
        ),
        packer.count.eq(Mux(marks[10], 0, layout.nbytes + marks[8])),
        packer.last.eq(marks[9]),
        packer.valid.eq(valid),
    ]


def _rounded(stage: Pipeline, x: Value, peak: Value, is_zero: Value, bits: int) -> Value:
    """Return the register of the mantissa of ``x``, three stages after it: nearest, ties to even, saturated.

    A value whose exponent is ``distance`` below the peak has its highest one that far below the highest bit
    of a mantissa; from ``bits + 1`` on it is below one half. Subnormals are among those, because the peak is
    32 or more.
    """
    difference = (peak - x[23:31])[:8]
    is_small = is_zero | (difference > bits)
    distance = stage.hold(Mux(is_small, bits + 1, difference)[: bits.bit_length() + 1])
    significand = stage.hold(Cat(x[:23], Const(1, 1)))
    sign = stage.hold(x[31])
    is_small = stage.hold(is_small)

    exact = (Cat(Const(0, bits + 1), significand) >> distance)[: 25 + bits]
    kept = stage.hold(Mux(is_small, 0, Cat(exact[:24].any(), exact[24:])))
    sign = stage.hold(sign)

    sticky, half, whole = kept[0], kept[1], kept[2:]
    up = half & (sticky | whole[0]) & ~whole.all()  # the largest one is not exceeded
    # -(x + up) is ~x + 1 - up: one carry chain rounds and negates.
    return stage.hold(((Cat(whole, Const(0, 1)) ^ sign.replicate(bits + 1)) + (up ^ sign))[: bits + 1])
