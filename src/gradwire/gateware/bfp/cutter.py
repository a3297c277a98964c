"""Where the mantissas of each word stand in a ``bfp`` payload, found ahead of the bytes themselves."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from gradwire.gateware.bfp.format import Layout
from gradwire.gateware.stream import AxiStream, count_kept


class BfpCutter(wiring.Component):
    """Gives two words of a payload, and the place where the next mantissas begin.

    Words go to two memories in turn, which are LUT RAM: registers for two words would be half of those of a
    decompressor. So the first word at hand is in one of them, the next one in the other, and both of them
    stand in ``window`` as ``place`` counts, the first memory's word once more behind the second's.

    Places depend on counts alone, never on data, so that the next ones are known a cycle ahead, and what
    remains to do within a cycle is to compare one with the packet's end. An output is taken in each cycle in
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
        second = opening if layout.words == 1 else nbytes
        index = Signal(range(max(2, layout.words)))
        # The ends of the next word's mantissas and of those after it, counted from the first word at hand.
        after, beyond = Signal(bits + 1, init=opening), Signal(bits + 2, init=opening + second)
        now, then, leaves, clears = self._words_at_hand(m)

        fires = self.valid & self.ready
        wraps = after[bits]
        in_then = then.tvalid & then.tlast
        last = Mux(now.tlast, beyond > now.count, in_then & (beyond > size + then.count))
        is_null = Mux(now.tlast, after > now.count, in_then & (after > size + then.count))
        m.d.comb += [
            self.valid.eq(now.tvalid & (now.tlast | then.tvalid | (beyond <= size))),
            self.last.eq(last),
            self.is_null.eq(is_null),
            self.opens.eq(index == 0),
            self.place[:bits].eq(place),
            leaves.eq(fires & (last | wraps)),
            clears.eq(fires & last & ~now.tlast),
        ]
        step = Mux(index == (layout.words - 2) % layout.words, opening, nbytes)
        with m.If(fires):
            m.d.sync += [
                index.eq(Mux(last | (index == layout.words - 1), 0, index + 1)),
                place.eq(Mux(last, 0, after[:bits])),
                after.eq(Mux(last, opening, beyond - Mux(wraps, size, 0))),
                beyond.eq(Mux(last, opening + second, beyond + step - Mux(wraps, size, 0))),
            ]
        return m

    def _words_at_hand(self, m: Module) -> tuple[Any, Any, Signal, Signal]:
        """Return what is known of the two words, and how the first one leaves, and the second one with it."""
        come, size = self.s_axis, self._size
        now, then = (_Word(name, size) for name in ("now", "then"))
        leaves, clears = Signal(), Signal()
        stays, follows = now.tvalid & ~leaves, then.tvalid & ~clears
        takes = come.tvalid & come.tready
        count = count_kept(come.tkeep)
        m.d.comb += come.tready.eq(~then.tvalid | leaves)
        with m.If(~stays):
            m.d.sync += [
                now.count.eq(Mux(follows, then.count, count)),
                now.tlast.eq(Mux(follows, then.tlast, come.tlast)),
            ]
        with m.If(come.tready):
            m.d.sync += [then.count.eq(count), then.tlast.eq(come.tlast)]
        m.d.sync += [
            now.tvalid.eq(stays | follows | takes),
            then.tvalid.eq(Mux(stays, then.tvalid | takes, follows & takes)),
        ]
        self._remember(m, takes, leaves, clears)
        return now, then, leaves, clears

    def _remember(self, m: Module, takes: Value, leaves: Value, clears: Value) -> None:
        """Put words into the memories, and show those at hand. The counters' low bit chooses a memory.

        A word that comes is written at once, because its place is free, and again until it is taken: when
        that happens is known late in a cycle.
        """
        come, width = self.s_axis, 8 * self._size
        written, first, second = Signal(2), Signal(2), Signal(2, init=1)
        m.d.sync += [
            written.eq(written + takes),
            first.eq(first + leaves + clears),
            second.eq(second + leaves + clears),
        ]
        words = []
        for at, place in enumerate((second, first)):
            m.submodules[f"words{at}"] = memory = Memory(shape=width, depth=2, init=[])
            put, get = memory.write_port(), memory.read_port(domain="comb")
            m.d.comb += [
                put.addr.eq(written[1]),
                put.data.eq(come.tdata),
                put.en.eq(written[0] == at),
                get.addr.eq(place[1]),
            ]
            words.append(get.data)
        m.d.comb += [self.place[-1].eq(first[0]), self.window.eq(Cat(*words, words[0]))]


class _Word:
    """What is known of a word at hand, and how many bytes it has."""

    def __init__(self, name: str, size: int) -> None:
        self.count = Signal(range(size + 1), name=f"{name}_count", reset_less=True)
        self.tlast = Signal(name=f"{name}_last", reset_less=True)
        self.tvalid = Signal(name=f"{name}_valid")
