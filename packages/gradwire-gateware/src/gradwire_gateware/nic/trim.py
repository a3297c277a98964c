"""Some bytes of a packet, moved to the beginning of a word."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from gradwire_gateware.nic.packets import clipped
from gradwire_gateware.stream import Pipeline, block_ports, first_bytes

_COARSE = 4
"""A word is rotated by multiples of this many bytes first, then by the rest."""


class Trim(wiring.Component):
    """A cut of packets to ``nbytes`` bytes from byte ``skip`` on; without ``wanted``, a packet is dropped.

    The three are read while ``told`` is high, and must stay for a packet's words, which wait for them; in the
    cycle of ``takes_last``, the last of these moves. Every wanted packet gives one packet, though a shorter
    one if it ends early. Two stages rotate a word by what is left of ``skip`` in it, and one puts the rest of
    the word before and the beginning of this one together. After the last word, one may be left to put
    together, which takes a cycle.
    """

    def __init__(self, width: int, most_skipped: int, most: int = 2**16 - 1) -> None:
        super().__init__(
            {
                **block_ports(width),
                "told": In(1),
                "wanted": In(1),
                "skip": In(range(most_skipped + 1)),
                "nbytes": In(range(most + 1)),
                "takes_last": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
        come, out = self.s_axis, self.m_axis
        size = len(come.tkeep)
        ready, flushes, takes = Signal(), Signal(), Signal()
        m.d.comb += [
            ready.eq(~out.tvalid | out.tready),
            come.tready.eq(ready & self.told & ~flushes),
            takes.eq(come.tready & come.tvalid),
            self.takes_last.eq(takes & come.tlast),
        ]
        within, ended = Signal(), Signal()
        goes_on = Signal()  # within | flushes as one register, because all bytes of a word follow it
        shift_bits = size.bit_length() - 1
        skipped = Cat(self.skip, Const(0, shift_bits))
        drop, shift = Signal(len(self.skip)), Signal(shift_bits)
        left = Signal(len(self.nbytes))
        emits = flushes | (takes & within & ~ended & (drop == 0))
        closes = flushes | (left <= size)
        with m.If(takes & ~within):
            m.d.sync += [
                drop.eq(self.skip >> shift_bits),
                shift.eq(skipped[:shift_bits]),
                left.eq(self.nbytes),
                ended.eq(~self.wanted),
            ]
        with m.Elif(takes | (flushes & ready)):
            with m.If(drop != 0):
                m.d.sync += drop.eq(drop - 1)
            with m.Elif(~ended):
                m.d.sync += [left.eq(left - size), ended.eq(closes)]
        with m.If(takes):
            has_more = Mux(within, ~ended & ~((drop == 0) & closes), self.wanted)
            m.d.sync += [within.eq(~come.tlast), flushes.eq(come.tlast & has_more)]
            m.d.sync += goes_on.eq(~come.tlast | has_more)
        with m.Elif(ready):
            m.d.sync += [flushes.eq(0), goes_on.eq(within)]

        stage = Pipeline(m, ready)
        rotation = Mux(goes_on, shift, skipped[:shift_bits])
        steps, emits, closes = stage.hold(takes | flushes, resets=True), stage.hold(emits), stage.hold(closes)
        count = stage.hold(Mux(drop == 0, clipped(left, size), 0))
        coarse = Cat(Const(0, 2), rotation[2:])
        word = stage.hold(_rotated(come.tdata, coarse))
        rotation = stage.hold(rotation)

        word = stage.hold(_rotated(word, rotation[:2]))
        low = stage.hold(Const(2**size - 1, size) >> rotation)
        keep = stage.hold(first_bytes(count, size))
        steps, emits, closes = stage.hold(steps, resets=True), stage.hold(emits), stage.hold(closes)

        before = Signal.like(word, reset_less=True)
        with m.If(ready & steps):
            m.d.sync += before.eq(word)
        bits = Cat(bit.replicate(8) for bit in low)
        m.d.comb += [
            out.tdata.eq(stage.hold((before & bits) | (word & ~bits))),
            out.tkeep.eq(stage.hold(keep)),
            out.tlast.eq(stage.hold(closes)),
            out.tvalid.eq(stage.hold(steps & emits, resets=True)),
        ]
        return m


def _rotated(word: Value, count: Value) -> Value:
    """Return a word with its lowest bytes moved to its top."""
    return (Cat(word, word) >> Cat(Const(0, 3), count))[: len(word)]
