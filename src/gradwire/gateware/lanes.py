"""Lanes: blocks side by side, which take the packets of a wide stream in turn."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from gradwire.gateware.stream import AxiStream, flat

_SLACK_WORDS = 4
"""Wide words that a lane's memory holds beyond a chunk, so that latencies do not stop the wide stream."""


class Distributor(wiring.Component):
    """Gives the packets of a stream of ``lanes`` times ``width`` bits to narrow streams, one each, in turn.

    A packet passes at the rate of the wide stream into its lane's memory, which holds ``chunk_words`` narrow
    words, and leaves from there at that of the narrow one, while the others get theirs. A longer packet
    passes too, but makes the wide stream wait.
    """

    def __init__(self, width: int, *, lanes: int = 4, chunk_words: int = 512) -> None:
        self._lanes, self._depth = lanes, -(-chunk_words // lanes) + _SLACK_WORDS
        super().__init__({"s_axis": In(AxiStream(lanes * width)), "lane": Out(AxiStream(width)).array(lanes)})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
        come, word = self.s_axis, flat(self.s_axis)
        here = _turns(m, self._lanes, come.tvalid & come.tready & come.tlast)
        has_room = []
        for at in range(self._lanes):
            m.submodules[f"fifo{at}"] = fifo = SyncFIFOBuffered(width=len(word), depth=self._depth)
            m.d.comb += [fifo.w_data.eq(word), fifo.w_en.eq(come.tvalid & here[at])]
            has_room.append(fifo.w_rdy & here[at])
            _cut(m, fifo, self.lane[at])
        m.d.comb += come.tready.eq(Cat(has_room).any())
        return m


class Collector(wiring.Component):
    """Gives the packets of narrow streams, one of each in turn, to one of ``lanes`` times ``width`` bits.

    The other way round as the ``Distributor``, with the same memories.
    """

    def __init__(self, width: int, *, lanes: int = 4, chunk_words: int = 512) -> None:
        self._lanes, self._depth = lanes, -(-chunk_words // lanes) + _SLACK_WORDS
        super().__init__({"lane": In(AxiStream(width)).array(lanes), "m_axis": Out(AxiStream(lanes * width))})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
        out, word, takes = self.m_axis, flat(self.m_axis), Signal()
        m.d.comb += takes.eq(~out.tvalid | out.tready)
        leaving, ends = [], Signal()
        here = _turns(m, self._lanes, ends)
        for at in range(self._lanes):
            m.submodules[f"fifo{at}"] = fifo = SyncFIFOBuffered(width=len(word), depth=self._depth)
            _gather(m, self.lane[at], fifo)
            m.d.comb += fifo.r_en.eq(takes & here[at])
            leaving.append(Mux(here[at] & fifo.r_rdy, Cat(fifo.r_data, 1), 0))
        left = reduce(or_, leaving)
        m.d.comb += ends.eq(takes & left[-1] & left[-2])
        with m.If(takes):
            m.d.sync += Cat(word, out.tvalid).eq(left)
        return m


def _turns(m: Module, lanes: int, ends: Value) -> Signal:
    """Return whose turn it is, one bit for each lane; the next one's begins after ``ends``."""
    here = Signal(lanes, init=1)
    with m.If(ends):
        m.d.sync += here.eq(here.rotate_left(1))
    return here


def _cut(m: Module, fifo: SyncFIFOBuffered, out: Any) -> None:
    """Shift the wide words of a memory out, as narrow ones that keep a byte, or one if none does."""
    width, size = len(out.tdata), len(out.tkeep)
    lanes = len(fifo.r_data) // (width + size)
    data, keep = Signal(lanes * width, reset_less=True), Signal(lanes * size, reset_less=True)
    last, has_more = Signal(reset_less=True), keep[size]
    m.d.comb += [
        out.tdata.eq(data),
        out.tkeep.eq(keep),
        out.tlast.eq(last & ~has_more),
        fifo.r_en.eq(~out.tvalid | (out.tready & ~has_more)),
    ]
    with m.If(fifo.r_en):
        m.d.sync += [Cat(data, keep, last).eq(fifo.r_data), out.tvalid.eq(fifo.r_rdy)]
    with m.Elif(out.tready):
        m.d.sync += [data.eq(data >> width), keep.eq(keep >> size)]


def _gather(m: Module, come: Any, fifo: SyncFIFOBuffered) -> None:
    """Put the words of a narrow stream together; a packet's last wide word may be partial."""
    width, size = len(come.tdata), len(come.tkeep)
    lanes = len(fifo.w_data) // (width + size)
    data, keep = Signal(lanes * width, reset_less=True), Signal(lanes * size, reset_less=True)
    last, place, is_full = Signal(reset_less=True), Signal(lanes, init=1), Signal()
    m.d.comb += [
        come.tready.eq(~is_full | fifo.w_rdy),
        fifo.w_data.eq(Cat(data, keep, last)),
        fifo.w_en.eq(is_full),
    ]
    fills = come.tlast | place[-1]
    with m.If(come.tready & come.tvalid):
        m.d.sync += [last.eq(come.tlast), is_full.eq(fills), place.eq(Mux(fills, 1, place << 1))]
        for at in range(lanes):
            with m.If(place[at]):
                m.d.sync += data.word_select(at, width).eq(come.tdata)
            with m.If(place[: at + 1].any()):
                m.d.sync += keep.word_select(at, size).eq(Mux(place[at], come.tkeep, 0))
    with m.Elif(fifo.w_rdy):
        m.d.sync += is_full.eq(0)
