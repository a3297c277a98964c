"""The hardware of ``bfp``: rounding blocks to shared exponents, and decoding at any byte offset."""

from __future__ import annotations

from typing import NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from gradwire.codecs.blocks import NAN_EXPONENT, SMALLEST_EXPONENT, Bfp
from gradwire_gateware import LANE_BITS
from gradwire_gateware.formats import BfpLayout
from gradwire_gateware.packer import Packer, find_peaks, peaks_latency
from gradwire_gateware.queues import counted_memory
from gradwire_gateware.stream import (
    COARSE,
    AxiStream,
    Circuit,
    LutFIFO,
    Pipeline,
    block_ports,
    count_kept,
    leading_zeros,
    send,
    shift_right_bytes,
    stream,
)

# The compressor: a block waits for its largest exponent, to which its values are rounded.

_PEAKS = 16
"""The depth of the memory of block exponents."""
_ENCODING = 4
"""The largest latency in cycles of a word, and of its block's exponent, through the two memories."""


class BfpCompressor(Circuit):
    """A compressor from float32 to payloads of ``codec``, packet by packet.

    A block's words wait in a memory for its largest exponent, whose search halves the lanes in each stage.
    Then one stage joins words and exponent, two compute distances and shift, one rounds, and two belong to
    the ``Packer``. A packet's last block is padded with zeros, one word per cycle, before the next packet.
    """

    def __init__(self, codec: Bfp, width: int = 256) -> None:
        self._layout = BfpLayout.of(codec, width)
        super().__init__(block_ports(width))

    def _describe(self, m: Module) -> None:
        come, layout = self.s_axis, self._layout
        width = len(come.tdata)
        m.submodules.packer = packer = Packer(width, layout.nbytes + 1)
        stages = peaks_latency(layout.lanes)
        depth = layout.words + stages + _ENCODING + 3
        m.submodules.values = values = SyncFIFOBuffered(width=width + 3, depth=depth)
        m.submodules.peaks = peaks = SyncFIFOBuffered(width=8, depth=_PEAKS)

        pads, index = Signal(), Signal(range(max(2, layout.words)))
        is_first, closes = index == 0, index == layout.words - 1
        is_null = ~pads & is_first & ~come.tkeep[0]
        room, moves = Signal(), Signal()
        ends = pads | come.tlast
        # One more word may arrive before the register is updated.
        m.d.sync += room.eq((values.level < depth - 1) & (peaks.level < _PEAKS - stages - 1))
        m.d.comb += [come.tready.eq(room & ~pads), moves.eq(room & (pads | come.tvalid))]
        with m.If(moves):
            m.d.sync += [index.eq(Mux(closes | is_null, 0, index + 1)), pads.eq(ends & ~closes & ~is_null)]
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


def _quantise(
    m: Module, layout: BfpLayout, values: SyncFIFOBuffered, peaks: SyncFIFOBuffered, packer: Packer
) -> None:
    """Round the words in ``values`` to their blocks' exponents in ``peaks``, and pack the mantissas."""
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
    # ``opens`` shifts all mantissas; the signal and its inverse are two registers, each for half of the
    # mantissas.
    marks = Cat(byte, opens, closes, null, ~opens)
    marks, valid = stage.delay(marks, 3), stage.delay(valid, 3, resets=True)
    mantissas = Cat(rounded)
    opened, half = Cat(marks[:8], mantissas), len(mantissas) // 2
    low = Mux(marks[8], opened[:half], mantissas[:half])
    high = Mux(marks[11], mantissas[half:], opened[half:])
    count = Mux(marks[10], 0, layout.nbytes + marks[8])
    m.d.comb += packer.take(Cat(low, high), count, marks[9], valid)


def _rounded(stage: Pipeline, x: Value, peak: Value, is_zero: Value, bits: int) -> Value:
    """Return the register of the rounded mantissa of ``x``, three stages later: ties to even, saturated.

    A value ``distance`` below the peak has its highest bit ``distance`` bits below a mantissa's highest bit.
    From ``bits + 1`` on, and for subnormals, whose peak is 32 or more, the value is below one half.
    """
    difference = (peak - x[23:31])[:8]
    is_small = is_zero | (difference > bits)
    distance = stage.hold(Mux(is_small, bits + 1, difference)[: bits.bit_length() + 1])
    significand, sign, is_small = stage.hold_all(Cat(x[:23], Const(1, 1)), x[31], is_small)

    exact = (Cat(Const(0, bits + 1), significand) >> distance)[: 25 + bits]
    kept = stage.hold(Mux(is_small, 0, Cat(exact[:24].any(), exact[24:])))
    sign = stage.hold(sign)

    sticky, half, whole = kept[0], kept[1], kept[2:]
    up = half & (sticky | whole[0]) & ~whole.all()  # saturates at the largest mantissa
    # -(x + up) is ~x + 1 - up: one carry chain rounds and negates.
    return stage.hold(((Cat(whole, Const(0, 1)) ^ sign.replicate(bits + 1)) + (up ^ sign))[: bits + 1])


# The decompressor: the offsets of each word's mantissas are computed before the bytes are read.

_COMING = 4
"""The depth of the queue behind the two current words."""


class BfpCutter(Circuit):
    """A source of a payload's two current words, and of the offset of the next mantissas in these words.

    The offset is ``place``. Words alternate between two memories in LUT RAM, because registers for two words
    would be half of a decompressor's registers. More words may wait in the LUT RAM, so that the room signal
    is a register. One current word is in each memory. ``window`` has both words, followed by the first
    memory's word again, so that ``place`` can start in either current word.

    Offsets depend only on byte counts, never on data. So the next offset, and the bytes of each word beyond
    this offset, are known one cycle ahead. An output is transferred in a cycle in which ``valid`` and
    ``ready`` are high. ``opens`` marks that a block's exponent is at ``place``, and ``is_null`` marks that
    the packet has no whole word.
    """

    def __init__(self, layout: BfpLayout, width: int) -> None:
        self._layout, self._size = layout, width // 8
        super().__init__(
            {
                "s_axis": In(AxiStream(width)),
                "ready": In(1),
                "valid": Out(1),
                "last": Out(1),
                "opens": Out(1),
                "is_null": Out(1),
                "place": Out(range(2 * self._size)),
                "window": Out(3 * width),
            }
        )

    def _describe(self, m: Module) -> None:
        """Describe the circuit: the offsets, and the two current words."""
        layout, size = self._layout, self._size
        bits = len(self.place) - 1
        place = Signal(bits)
        nbytes, opening = layout.nbytes, layout.nbytes + 1
        first_two = opening + (opening if layout.words == 1 else nbytes)
        index = Signal(range(max(2, layout.words)))
        closes = index == layout.words - 1
        # The end offsets of the next two words' mantissas, counted from the first current word.
        after, beyond = Signal(bits + 1, init=opening), Signal(bits + 2, init=first_two)
        step = Mux(index == (layout.words - 2) % layout.words, opening, nbytes)
        fits = Signal(init=first_two <= size)  # whether ``beyond`` is in the first word

        move = _Move(Signal(), Signal(), after[bits], step, first_two)
        now, then = self._words_at_hand(m, move)
        in_then = then.tvalid & then.tlast
        between = Mux(closes, opening, nbytes)  # the bytes between ``after`` and ``beyond``
        m.d.comb += [
            self.valid.eq(now.tvalid & (now.tlast | then.tvalid | fits)),
            self.last.eq(move.last),
            self.is_null.eq(Mux(now.tlast, now.spare < -between, in_then & (then.spare < -between))),
            self.opens.eq(index == 0),
            self.place[:bits].eq(place),
            move.fires.eq(self.valid & self.ready),
            move.last.eq(Mux(now.tlast, now.spare < 0, in_then & (then.spare < 0))),
        ]
        moved = beyond + step - Mux(move.wraps, size, 0)
        with m.If(move.fires):
            m.d.sync += [
                index.eq(Mux(move.last | closes, 0, index + 1)),
                place.eq(Mux(move.last, 0, after[:bits])),
                after.eq(Mux(move.last, opening, beyond - Mux(move.wraps, size, 0))),
                beyond.eq(Mux(move.last, first_two, moved)),
                fits.eq(Mux(move.last, first_two <= size, moved <= size)),
            ]

    def _words_at_hand(self, m: Module, move: _Move) -> tuple[_CutWord, _CutWord]:
        """Return the two current words. The second word leaves together with the first word."""
        come, size = self.s_axis, self._size
        now, then = (_CutWord(name, size) for name in ("now", "then"))
        leaves = move.fires & (move.last | move.wraps)
        clears = move.fires & move.last & ~now.tlast
        stays, follows = now.tvalid & ~leaves, then.tvalid & ~clears
        has_place = ~then.tvalid | leaves
        m.submodules.coming = coming = LutFIFO(width=len(then.count) + 1, depth=_COMING)
        m.d.comb += [
            coming.w_data.eq(Cat(count_kept(come.tkeep), come.tlast)),
            coming.w_en.eq(come.tvalid),
            come.tready.eq(coming.w_rdy),
            coming.r_en.eq(has_place),
        ]
        takes = coming.r_rdy & has_place
        count, is_last = coming.r_data[: len(then.count)], coming.r_data[-1]
        # The second word's base is one word beyond the offset, which may advance in the same cycle.
        base, base_follows = Signal.like(now.spare, init=size - move.first_two), Signal.like(now.spare)
        moved = base - move.step + Mux(move.wraps, size, 0)
        m.d.comb += base_follows.eq(Mux(move.fires, Mux(move.last, size - move.first_two, moved), base))
        m.d.sync += base.eq(base_follows)
        with m.If(~stays):
            begins = Mux(follows, then.count, count) - move.first_two
            m.d.sync += [
                now.tlast.eq(Mux(follows, then.tlast, is_last)),
                now.spare.eq(Mux(follows & ~move.last, then.spare - move.step, begins)),
            ]
        with m.Elif(move.fires):
            m.d.sync += now.spare.eq(now.spare - move.step)
        with m.If(has_place):
            m.d.sync += [then.count.eq(count), then.tlast.eq(is_last), then.spare.eq(count + base_follows)]
        with m.Elif(move.fires):
            m.d.sync += then.spare.eq(then.spare - move.step)
        m.d.sync += [
            now.tvalid.eq(stays | follows | takes),
            then.tvalid.eq(Mux(stays, then.tvalid | takes, follows & takes)),
        ]
        self._remember(m, come.tvalid & come.tready, leaves, clears)
        return now, then

    def _remember(self, m: Module, takes: Value, leaves: Value, clears: Value) -> None:
        """Write words to the memories by the counters' low bit, and read the current words.

        A word is written to a free entry until it is accepted, which is known late in a cycle.
        """
        come, width = self.s_axis, 8 * self._size
        depth = 1 + _COMING // 2
        bits = (2 * depth - 1).bit_length()
        written, first, second = Signal(bits), Signal(bits), Signal(bits, init=1)
        m.d.sync += [
            written.eq(written + takes),
            first.eq(first + leaves + clears),
            second.eq(second + leaves + clears),
        ]
        words = []
        for at, place in enumerate((second, first)):
            m.submodules[f"words{at}"] = memory = Memory(shape=width, depth=2 ** (bits - 1), init=[])
            put, get = memory.write_port(), memory.read_port(domain="comb")
            m.d.comb += [
                put.addr.eq(written[1:]),
                put.data.eq(come.tdata),
                put.en.eq(written[0] == at),
                get.addr.eq(place[1:]),
            ]
            words.append(get.data)
        m.d.comb += [self.place[-1].eq(first[0]), self.window.eq(Cat(*words, words[0]))]


class _Move(NamedTuple):
    """The change of the offset in a cycle."""

    fires: Signal
    """The signal that the next mantissas are transferred."""
    last: Signal
    """The signal that the next mantissas are the last mantissas of their packet."""
    wraps: Value
    """The signal that the next mantissas end in the second current word, or exactly with the first."""
    step: Value
    """The number of bytes by which ``beyond`` advances."""
    first_two: int
    """The value of ``beyond`` at the beginning of each packet."""


class _CutWord:
    """A current word: its number of bytes, and how many of them are ``spare``, after ``beyond``.

    ``spare`` is negative if a packet's last word ends before ``beyond``, which marks the packet's end.
    """

    def __init__(self, name: str, size: int) -> None:
        self.count = Signal(range(size + 1), name=f"{name}_count", reset_less=True)
        self.spare = Signal(signed(size.bit_length() + 4), name=f"{name}_spare", reset_less=True)
        self.tlast = Signal(name=f"{name}_last", reset_less=True)
        self.tvalid = Signal(name=f"{name}_valid")


_DECODING = 6
"""The latency in cycles from the cutter to the values."""
_QUIET_NAN = 0x7FC0_0000


class BfpDecompressor(Circuit):
    """A decompressor from payloads of ``codec`` to float32, packet by packet.

    A payload lacks its count, which the frame has, so whole blocks are decoded, with 0 for padding. A packet
    that ends within a block gives its complete words. After the ``BfpCutter``, two stages shift a word's
    mantissas to bit 0, one removes a block's exponent, and three decode.
    """

    def __init__(self, codec: Bfp, width: int = 256) -> None:
        self._layout = BfpLayout.of(codec, width)
        super().__init__(block_ports(width))

    def _describe(self, m: Module) -> None:
        out, layout = self.m_axis, self._layout
        size, most = len(out.tkeep), layout.nbytes + 1
        m.submodules.cutter = cutter = BfpCutter(layout, len(out.tdata))
        wiring.connect(m, wiring.flipped(self.s_axis), cutter.s_axis)
        rebuilt = stream(len(out.tdata))
        leaving, has_room = counted_memory(m, "leaving", rebuilt, cutter.valid & cutter.ready)
        wiring.connect(m, leaving, wiring.flipped(out))
        m.d.comb += cutter.ready.eq(has_room)
        stage = Pipeline(m, Const(1))

        fine, opens = stage.hold(cutter.place[:2]), stage.hold(cutter.opens)
        coarse = Cat(Const(0, 5), cutter.place[2:])
        found = stage.hold((cutter.window >> coarse)[: 8 * (most + COARSE - 1)])
        found, opens = stage.hold(shift_right_bytes(found, fine, most)), stage.hold(opens)
        exponent = Signal(8)
        shared = Mux(opens, found[:8], exponent)
        m.d.sync += exponent.eq(shared)
        mantissas = stage.hold(Mux(opens, found[8:], found)[: 8 * layout.nbytes])

        shared = stage.hold(shared)
        bits = layout.mantissa_bits + 1
        values = [
            _value(stage, mantissas.word_select(lane, bits), shared, layout.mantissa_bits)
            for lane in range(layout.lanes)
        ]
        valid = stage.delay(cutter.valid & cutter.ready, _DECODING, resets=True)
        last, keeps = stage.delay(cutter.last, _DECODING), stage.delay(~cutter.is_null, _DECODING)
        m.d.comb += send(rebuilt, Cat(values), keeps.replicate(size), last, valid)


def _value(stage: Pipeline, mantissa: Value, shared: Value, bits: int) -> Value:
    """Return the register of the float32 mantissa * 2^(shared - 126 - bits), three stages later.

    A mantissa is an integer; the position of its highest set bit determines the exponent. Shared exponents
    below 32, which no encoder writes, may give subnormals, whose mantissas are shifted less.
    """
    sign, shared, is_far = stage.hold(mantissa[-1]), stage.hold(shared), stage.hold(shared[4:].any())
    magnitude = stage.hold(Mux(mantissa[-1], -mantissa, mantissa)[: bits + 1])

    found = leading_zeros(Cat(Const(0, 15 - bits), magnitude))
    zeros = stage.hold(found)
    is_normal = stage.hold(is_far | (shared[:4] >= found))
    sign = stage.hold(sign)
    is_zero, magnitude, shared = stage.hold_all(magnitude == 0, magnitude, shared)

    left = (23 - bits + Mux(is_normal, zeros, shared[:4]))[:5]
    exponent = Mux(is_normal, shared + 1 - zeros, 0)[:8]
    finite = Cat(Mux(is_zero | (shared == 0), 0, Cat((magnitude << left)[:23], exponent)), sign & ~is_zero)
    return stage.hold(Mux(shared == NAN_EXPONENT, _QUIET_NAN, finite))
