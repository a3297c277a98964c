"""Queues of records between the parts of a card, and its memories for words."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Module, Shape, Value
from amaranth.lib import data
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered

from gradwire.gateware.stream import AxiStream, SkidBuffer

_FILLED = 6
"""How many records a queue has at most while it says that it has room; the others may be on their way."""


class Queue:
    """Records in order. The first one is at ``first`` while ``has`` is high, and leaves with ``takes``."""

    def __init__(self, m: Module, name: str, layout: dict[str, int], depth: int = 16) -> None:
        self._m, self._layout = m, data.StructLayout(layout)
        m.submodules[name] = self._fifo = SyncFIFO(width=Shape.cast(self._layout).width, depth=depth)
        self.first: Any = self._layout(self._fifo.r_data)
        self.has: Value = self._fifo.r_rdy
        self.takes: Value = self._fifo.r_en
        self.has_room: Value = self._fifo.level <= _FILLED

    def put(self, when: Value, **fields: Value) -> None:
        """Add a record in each cycle in which ``when`` is high; call it once."""
        record: Any = self._layout(self._fifo.w_data)
        self._m.d.comb += self._fifo.w_en.eq(when)
        self._m.d.comb += [record[name].eq(value) for name, value in fields.items()]


def memory(m: Module, name: str, come: Any, depth: int) -> Any:
    """Return the stream of a memory that takes ``come``, behind registers: block RAM is slow."""
    m.submodules[name] = fifo = SyncFIFOBuffered(width=len(_word(come)), depth=depth)
    m.submodules[f"{name}_out"] = out = SkidBuffer(len(come.tdata))
    m.d.comb += [
        fifo.w_data.eq(_word(come)),
        fifo.w_en.eq(come.tvalid),
        come.tready.eq(fifo.w_rdy),
        _word(out.s_axis).eq(fifo.r_data),
        out.s_axis.tvalid.eq(fifo.r_rdy),
        fifo.r_en.eq(out.s_axis.tready),
    ]
    return out.m_axis


def stream(width: int) -> Any:
    """Return the signals of a stream."""
    return AxiStream(width).create()


def copy(to: Any, come: Any) -> Any:
    """Return the statement that gives ``to`` the words of ``come``."""
    return _word(to).eq(_word(come))


def _word(words: Any) -> Value:
    return Cat(words.tdata, words.tkeep, words.tlast)
