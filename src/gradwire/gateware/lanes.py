"""Lanes: blocks side by side, which take the packets of a wide stream in turn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from gradwire.gateware.stream import AxiStream, Pipeline, flat

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
        come = self.s_axis
        mixed = Cat(_mixed(come.tdata, self._lanes), _mixed(come.tkeep, self._lanes), come.tlast)
        here = _turns(m, self._lanes, come.tvalid & come.tready & come.tlast)
        has_room = []
        for at in range(self._lanes):
            m.submodules[f"fifo{at}"] = fifo = SyncFIFOBuffered(width=len(mixed), depth=self._depth)
            m.d.comb += [fifo.w_data.eq(mixed), fifo.w_en.eq(come.tvalid & here[at])]
            has_room.append(fifo.w_rdy & here[at])
            _cut(m, fifo, self.lane[at])
        m.d.comb += come.tready.eq(Cat(has_room).any())
        return m


class Collector(wiring.Component):
    """Gives the packets of narrow streams, one of each in turn, to one of ``lanes`` times ``width`` bits.

    The other way round as the ``Distributor``, with the same memories, one for each piece of a wide word.
    """

    def __init__(self, width: int, *, lanes: int = 4, chunk_words: int = 512) -> None:
        self._lanes, self._depth = lanes, -(-chunk_words // lanes) + _SLACK_WORDS
        super().__init__({"lane": In(AxiStream(width)).array(lanes), "m_axis": Out(AxiStream(lanes * width))})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
        out, takes, width = self.m_axis, Signal(), len(self.lane[0].tdata)
        m.d.comb += takes.eq(~out.tvalid | out.tready)
        ends, shown = Signal(), []
        here = _turns(m, self._lanes, ends)
        has_word = Signal(self._lanes)
        for at in range(self._lanes):
            fifos = []
            for piece in range(self._lanes):
                bits = len(flat(self.lane[at])) - (piece != self._lanes - 1)  # the last one ends packets
                m.submodules[f"fifo{at}_{piece}"] = fifo = SyncFIFOBuffered(width=bits, depth=self._depth)
                m.d.comb += fifo.r_en.eq(takes & here[at] & has_word[at])
                fifos.append(fifo)
            _gather(m, f"lane{at}", self.lane[at], fifos)
            m.d.comb += has_word[at].eq(fifos[-1].r_rdy)
            words = [fifo.r_data for fifo in fifos]
            word = Cat(*(each[:width] for each in words), *(each[width:] for each in words))
            shown.append(word & here[at].replicate(len(word)))
        left = reduce(or_, shown)
        comes = (has_word & here).any()
        m.d.comb += ends.eq(takes & comes & left[-1])
        stage = Pipeline(m, takes)
        m.d.comb += [flat(out).eq(stage.hold(left)), out.tvalid.eq(stage.hold(comes, resets=True))]
        return m


def _turns(m: Module, lanes: int, ends: Value) -> Signal:
    """Return whose turn it is, one bit for each lane; the next one's begins after ``ends``."""
    here = Signal(lanes, init=1)
    with m.If(ends):
        m.d.sync += here.eq(here.rotate_left(1))
    return here


def _mixed(word: Value, pieces: int) -> Value:
    """Return a word with equal bits of its pieces side by side, so that one block RAM has those of all."""
    size = len(word) // pieces
    return Cat(word[bit::size] for bit in range(size))


def _cut(m: Module, fifo: SyncFIFOBuffered, out: Any) -> None:
    """Give the pieces of a memory's wide words that keep a byte, or one if none does.

    A wide word stays at the memory's output meanwhile. How many pieces it has is read with the first of them,
    because block RAM is slow; if that is the only one, nothing leaves in the cycle after it.
    """
    width, size = len(out.tdata), len(out.tkeep)
    lanes = len(fifo.r_data) // (width + size)
    last = fifo.r_data[-1]
    data = Cat(fifo.r_data[: lanes * width][lane::lanes] for lane in range(lanes))
    keep = Cat(fifo.r_data[lanes * width : -1][lane::lanes] for lane in range(lanes))
    place, left, moves = Signal(range(lanes)), Signal(lanes), Signal()
    begins, follow = place == 0, Cat(keep[size::size], Const(0, 1))
    stage = Pipeline(m, moves)
    m.d.comb += [
        moves.eq(~out.tvalid | out.tready),
        fifo.r_en.eq(moves & ~begins & ~left[1]),
        out.tdata.eq(stage.hold(data.word_select(place, width))),
        out.tkeep.eq(stage.hold(keep.word_select(place, size))),
        out.tlast.eq(stage.hold(last & ~Mux(begins, follow[0], left[1]))),
        out.tvalid.eq(stage.hold(Mux(begins, fifo.r_rdy, left[0]), resets=True)),
    ]
    with m.If(moves & begins):
        m.d.sync += [left.eq(follow), place.eq(fifo.r_rdy)]
    with m.Elif(moves):
        m.d.sync += [left.eq(left >> 1), place.eq(Mux(left[1], place + 1, 0))]


def _gather(m: Module, name: str, come: Any, fifos: Sequence[SyncFIFOBuffered]) -> None:
    """Put the words of a narrow stream into memories side by side, in turn, as pieces of wide ones.

    A packet's last wide word may be partial; its last piece goes into all memories that are left, and keeps
    nothing there.
    """
    place = Signal(len(fifos), init=1, name=f"{name}_place")
    moves = come.tvalid & come.tready
    m.d.comb += come.tready.eq(~place[0] | fifos[0].w_rdy)  # the others have no more words than the first
    for at, fifo in enumerate(fifos):
        keep = Mux(place[at], come.tkeep, 0)
        m.d.comb += [
            fifo.w_data.eq(Cat(come.tdata, keep, come.tlast)[: len(fifo.w_data)]),
            fifo.w_en.eq(moves & (place[at] | (come.tlast & place[:at].any()))),
        ]
    with m.If(moves):
        m.d.sync += place.eq(Mux(come.tlast | place[-1], 1, place << 1))
