"""The whole floats of a payload, and the bytes of a cut one behind them."""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from gradwire.gateware.nic.packets import clipped
from gradwire.gateware.stream import block_ports, first_bytes
from gradwire.gateware.words import LANE_BITS


class Split(wiring.Component):
    """Passes the first ``floats`` floats of a packet, and gives the three bytes after them as ``tail``.

    ``floats`` is read while ``told`` is high, and must stay until ``takes_last``; a cycle after it, ``done``
    is high and ``tail`` there. Which bytes of the tail count is not known here.
    """

    def __init__(self, width: int) -> None:
        super().__init__(
            {
                **block_ports(width),
                "told": In(1),
                "floats": In(14),
                "takes_last": Out(1),
                "tail": Out(24),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit. Behind floats that fill their words, the tail is alone in a word."""
        m = Module()
        come, out = self.s_axis, self.m_axis
        lanes = len(come.tdata) // LANE_BITS
        within, left = Signal(), Signal(len(self.floats))
        rest = Mux(within, left, self.floats)
        kept = Signal(lanes)
        passes = ~within | (rest != 0)
        moves = come.tvalid & come.tready
        m.d.comb += [
            kept.eq(first_bytes(clipped(rest, lanes), lanes)),
            out.tdata.eq(come.tdata),
            out.tkeep.eq(Cat(bit.replicate(LANE_BITS // 8) for bit in kept)),
            out.tlast.eq(come.tlast | (rest <= lanes)),
            out.tvalid.eq(self.told & come.tvalid & passes),
            come.tready.eq(self.told & (out.tready | ~passes)),
            self.takes_last.eq(moves & come.tlast),
        ]
        with m.If(moves):
            m.d.sync += [within.eq(~come.tlast), left.eq(Mux(rest <= lanes, 0, rest - lanes))]
        m.d.sync += [
            self.tail.eq(come.tdata.word_select(rest[: lanes.bit_length() - 1], LANE_BITS)),
            self.done.eq(moves & come.tlast),
        ]
        return m
