"""The decompressor of ``bfp``: a word of values in every cycle, wherever its mantissas stand."""

from __future__ import annotations

from typing import NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from gradwire.codecs.bfp import NAN_EXPONENT, Bfp
from gradwire_gateware.formats import BfpLayout
from gradwire_gateware.queues import counted_memory
from gradwire_gateware.stream import (
    AxiStream,
    LutFIFO,
    Pipeline,
    block_ports,
    count_kept,
    leading_zeros,
    shift_right_bytes,
    stream,
)

# Where the mantissas of each word stand in a ``bfp`` payload, found ahead of the bytes themselves.

_COMING = 4
"""The words that can wait behind the words at hand."""


class BfpCutter(wiring.Component):
    """A source of two words of a payload and of the place where the next mantissas begin.

    Words go in turn to two memories in LUT RAM: registers for two words would be half of those of a
    decompressor. More words may wait there, so that a register says whether there is room. The first word at
    hand is in one memory, the next word in the other. Both stand in ``window`` as ``place`` counts, with the
    first memory's word once more behind the second's.

    Places depend on counts alone, never on data, so that the next places are known a cycle ahead, and so are
    the bytes of each word behind them. An output is taken in each cycle in
    which ``valid`` and ``ready`` are high. ``opens`` says that a block's exponent stands at ``place``, and
    ``is_null`` that the packet has no whole word.
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

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit: the places, and the two words at hand."""
        m = Module()
        layout, size = self._layout, self._size
        bits = len(self.place) - 1
        place = Signal(bits)
        nbytes, opening = layout.nbytes, layout.nbytes + 1
        first_two = opening + (opening if layout.words == 1 else nbytes)
        index = Signal(range(max(2, layout.words)))
        closes = index == layout.words - 1
        # The ends of the next word's mantissas and of those after it, counted from the first word at hand.
        after, beyond = Signal(bits + 1, init=opening), Signal(bits + 2, init=first_two)
        step = Mux(index == (layout.words - 2) % layout.words, opening, nbytes)
        fits = Signal(init=first_two <= size)  # ``beyond`` in the first word

        move = _Move(Signal(), Signal(), after[bits], step, first_two)
        now, then = self._words_at_hand(m, move)
        in_then = then.tvalid & then.tlast
        between = Mux(closes, opening, nbytes)  # of ``after`` and ``beyond``
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
        return m

    def _words_at_hand(self, m: Module, move: _Move) -> tuple[_CutWord, _CutWord]:
        """Return the two words at hand; the second leaves with the first."""
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
        # A word that comes second has a word's bytes more than the place, which moves on meanwhile.
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
            m.d.sync += [
                then.count.eq(count),
                then.tlast.eq(is_last),
                then.spare.eq(count + base_follows),
            ]
        with m.Elif(move.fires):
            m.d.sync += then.spare.eq(then.spare - move.step)
        m.d.sync += [
            now.tvalid.eq(stays | follows | takes),
            then.tvalid.eq(Mux(stays, then.tvalid | takes, follows & takes)),
        ]
        self._remember(m, come.tvalid & come.tready, leaves, clears)
        return now, then

    def _remember(self, m: Module, takes: Value, leaves: Value, clears: Value) -> None:
        """Put words into the memories, and show those at hand. The counters' low bit chooses a memory.

        A word that comes is written at once, because its place is free, and again until it is taken: when
        that happens is known late in a cycle.
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
    """The move of the place in a cycle."""

    fires: Signal
    """The next mantissas are taken."""
    last: Signal
    """They are the last ones of their packet."""
    wraps: Value
    """They end in the second word at hand, or with the first one."""
    step: Value
    """The bytes by which ``beyond`` moves on."""
    first_two: int
    """The beginning of ``beyond`` in each packet."""


class _CutWord:
    """A word at hand: the numbers of its bytes, and of its bytes behind ``beyond``.

    The latter is below 0 if a packet's last word ends before, so that its sign says whether the packet is
    over.
    """

    def __init__(self, name: str, size: int) -> None:
        self.count = Signal(range(size + 1), name=f"{name}_count", reset_less=True)
        self.spare = Signal(signed(size.bit_length() + 4), name=f"{name}_spare", reset_less=True)
        self.tlast = Signal(name=f"{name}_last", reset_less=True)
        self.tvalid = Signal(name=f"{name}_valid")


_COARSE = 4
"""Mantissas are moved to the bottom by multiples of this many bytes first, then by the rest."""
_LATENCY = 6
"""Cycles from the cutter to the values."""
_QUIET_NAN = 0x7FC0_0000


class BfpDecompressor(wiring.Component):
    """The payload of ``codec`` in, float32 out, packet by packet.

    A payload does not say how many values its last block has, so that whole blocks come out, 0 for padding;
    the frame has the count. A packet that ends within a block ends there, with the words that it completes.

    Behind the ``BfpCutter``, two stages move a word's mantissas to the bottom, one takes the exponent off
    that stands before a block's first ones, and three rebuild the values.
    """

    def __init__(self, codec: Bfp, width: int = 256) -> None:
        self._layout = BfpLayout.of(codec, width)
        super().__init__(block_ports(width))

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
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
        found = stage.hold((cutter.window >> coarse)[: 8 * (most + _COARSE - 1)])
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
        valid, last, keeps = cutter.valid & cutter.ready, cutter.last, ~cutter.is_null
        for _ in range(_LATENCY):
            valid, last, keeps = stage.hold(valid, resets=True), stage.hold(last), stage.hold(keeps)
        m.d.comb += [
            rebuilt.tdata.eq(Cat(values)),
            rebuilt.tkeep.eq(keeps.replicate(size)),
            rebuilt.tlast.eq(last),
            rebuilt.tvalid.eq(valid),
        ]
        return m


def _value(stage: Pipeline, mantissa: Value, shared: Value, bits: int) -> Value:
    """Return the register of a float32, three stages after its mantissa: mantissa * 2^(shared - 126 - bits).

    A mantissa is an integer, whose highest one gives the exponent. Shared exponents below 32, which no
    encoder writes, may give subnormals: their mantissas are shifted less.
    """
    sign, shared, is_far = stage.hold(mantissa[-1]), stage.hold(shared), stage.hold(shared[4:].any())
    magnitude = stage.hold(Mux(mantissa[-1], -mantissa, mantissa)[: bits + 1])

    found = leading_zeros(Cat(Const(0, 15 - bits), magnitude))
    zeros, is_normal = stage.hold(found), stage.hold(is_far | (shared[:4] >= found))
    sign, is_zero = stage.hold(sign), stage.hold(magnitude == 0)
    magnitude, shared = stage.hold(magnitude), stage.hold(shared)

    left = (23 - bits + Mux(is_normal, zeros, shared[:4]))[:5]
    exponent = Mux(is_normal, shared + 1 - zeros, 0)[:8]
    finite = Cat(Mux(is_zero | (shared == 0), 0, Cat((magnitude << left)[:23], exponent)), sign & ~is_zero)
    return stage.hold(Mux(shared == NAN_EXPONENT, _QUIET_NAN, finite))
