"""A packet's size, and no more of it than a memory holds."""

from __future__ import annotations

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from gradwire.gateware.stream import block_ports, count_kept


class Bounded(wiring.Component):
    """Passes the first ``most`` words of a packet and its last one, and gives ``size`` when ``done`` is high.

    A damaged packet may decompress to many times its size.
    """

    def __init__(self, width: int, most: int) -> None:
        self._most = most
        super().__init__({**block_ports(width), "size": Out(20), "done": Out(1)})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit: ``size`` is that of all words, also of those that it leaves out."""
        m = Module()
        come, out = self.s_axis, self.m_axis
        step = len(come.tkeep)
        index, before = Signal(range(self._most + 1)), Signal(len(self.size))
        passes = (index != self._most) | come.tlast
        moves = come.tvalid & come.tready
        m.d.comb += [
            *(getattr(out, name).eq(getattr(come, name)) for name in ("tdata", "tkeep", "tlast")),
            out.tvalid.eq(come.tvalid & passes),
            come.tready.eq(out.tready | ~passes),
        ]
        count = Signal(range(step + 1), reset_less=True)
        total, ends = Signal(len(self.size), reset_less=True), Signal()
        m.d.sync += [count.eq(count_kept(come.tkeep)), total.eq(before), ends.eq(moves & come.tlast)]
        with m.If(moves):
            m.d.sync += [
                index.eq(Mux(come.tlast, 0, Mux(index == self._most, index, index + 1))),
                before.eq(Mux(come.tlast, 0, before + step)),
            ]
        m.d.sync += [self.size.eq(total + count), self.done.eq(ends)]
        return m
