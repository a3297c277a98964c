"""Where the mantissas of each word stand in a ``bfp`` payload, found ahead of the bytes themselves."""

from __future__ import annotations

from typing import NamedTuple

from amaranth import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from gradwire.gateware.bfp.format import Layout
from gradwire.gateware.lut_fifo import LutFIFO
from gradwire.gateware.stream import AxiStream, count_kept

_COMING = 4
"""The words that can wait behind those at hand."""


class BfpCutter(wiring.Component):
    """Gives two words of a payload, and the place where the next mantissas begin.

    Words go to two memories in turn, which are LUT RAM: registers for two words would be half of those of a
    decompressor. More of them may wait there, so that whoever sends them knows from a register if there is
    room. So the first word at hand is in one of them, the next one in the other, and both of them
    stand in ``window`` as ``place`` counts, the first memory's word once more behind the second's.

    Places depend on counts alone, never on data, so that the next ones are known a cycle ahead, and so is how
    many bytes of each word are left behind them. An output is taken in each cycle in
    which ``valid`` and ``ready`` are high. ``opens`` says that a block's exponent stands at ``place``, and
    ``is_null`` that the packet has no whole word.
    """

    def __init__(self, layout: Layout, width: int) -> None:
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

    def _words_at_hand(self, m: Module, move: _Move) -> tuple[_Word, _Word]:
        """Return what is known of the two words; the first one leaves, and the second one with it."""
        come, size = self.s_axis, self._size
        now, then = (_Word(name, size) for name in ("now", "then"))
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
    """What happens to the place in a cycle."""

    fires: Signal
    """The next mantissas are taken."""
    last: Signal
    """They are the last ones of their packet."""
    wraps: Value
    """They end in the second word at hand, or with the first one."""
    step: Value
    """How many bytes ``beyond`` moves on by."""
    first_two: int
    """Where ``beyond`` begins in each packet."""


class _Word:
    """What is known of a word at hand: how many bytes it has, and how many behind ``beyond``.

    The latter is below 0 if a packet's last word ends before, so that a sign says whether the packet is over.
    """

    def __init__(self, name: str, size: int) -> None:
        self.count = Signal(range(size + 1), name=f"{name}_count", reset_less=True)
        self.spare = Signal(signed(size.bit_length() + 4), name=f"{name}_spare", reset_less=True)
        self.tlast = Signal(name=f"{name}_last", reset_less=True)
        self.tvalid = Signal(name=f"{name}_valid")
