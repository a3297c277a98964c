"""Words in block RAM that can be read again until they leave for good."""

from __future__ import annotations

from typing import Any

from amaranth import Const, Module, Mux, ResetInserter, Shape, Signal, Value
from amaranth.lib import data
from amaranth.lib.memory import Memory

from gradwire_gateware.stream import LutFIFO, Pipeline

_AHEAD = 16
"""The records in LUT RAM; half of them may still come when there are as many."""


class RewindingQueue:
    """Records in order, of which the first is at ``first`` while ``has`` is high; ``takes`` moves on.

    A record that is taken keeps its place until it is among those that leave with ``frees``: the oldest one
    in each cycle. With ``rewinds``, the oldest is read again, a few cycles later; none is taken in that
    cycle, and none leaves in it or the one before. Up to ``filled`` records are in the memory while it
    ``has_room``, which is a register, so that one more may come. A few are in LUT RAM as well, so that
    ``takes`` doesn't have to stop the block RAM.
    """

    def __init__(self, m: Module, name: str, layout: dict[str, int], depth: int, filled: int) -> None:
        self._m, self._layout = m, data.StructLayout(layout)
        bits = Shape.cast(self._layout).width
        self.takes, self.frees, self.rewinds = (
            Signal(name=f"{name}_{what}") for what in ("takes", "frees", "rewinds")
        )
        self.has_room = Signal(init=1, name=f"{name}_has_room")
        m.submodules[name] = memory = Memory(shape=bits, depth=depth, init=[])
        m.submodules[f"{name}_ahead"] = ahead = ResetInserter(self.rewinds)(LutFIFO(width=bits, depth=_AHEAD))
        self._write, read = memory.write_port(), memory.read_port()
        self.first: Any = self._layout(ahead.r_data)
        self.has = ahead.r_rdy

        end, begin, at = (Signal(range(depth), name=f"{name}_{what}") for what in ("end", "begin", "at"))
        unread, used = (Signal(range(depth + 1), name=f"{name}_{what}") for what in ("unread", "used"))
        stage, may_fetch, fetches = Pipeline(m, Const(1)), Signal(), Signal()
        frees = stage.hold(self.frees, resets=True)
        fetched = stage.hold(fetches & ~self.rewinds, resets=True)
        m.d.comb += [
            self._write.addr.eq(end),
            fetches.eq(may_fetch & (unread != 0)),
            read.addr.eq(at),
            read.en.eq(fetches),
            ahead.w_data.eq(stage.hold(read.data)),  # block RAM is slow
            ahead.w_en.eq(stage.hold(fetched & ~self.rewinds, resets=True)),
            ahead.r_en.eq(self.takes),
        ]
        with m.If(self._write.en):
            m.d.sync += end.eq(_after(end, depth))
        with m.If(frees):
            m.d.sync += begin.eq(_after(begin, depth))
        with m.If(fetches):
            m.d.sync += at.eq(_after(at, depth))
        m.d.sync += [
            may_fetch.eq(ahead.level < _AHEAD // 2),
            unread.eq(unread + self._write.en - fetches),
            used.eq(used + self._write.en - frees),
            self.has_room.eq(used < filled),
        ]
        with m.If(self.rewinds):
            m.d.sync += [at.eq(begin), unread.eq(used + self._write.en)]

    def put(self, when: Value, **fields: Value) -> None:
        """Add a record in each cycle in which ``when`` is high; call it once."""
        record: Any = self._layout(self._write.data)
        self._m.d.comb += self._write.en.eq(when)
        self._m.d.comb += [record[name].eq(value) for name, value in fields.items()]


def _after(place: Signal, depth: int) -> Value:
    return Mux(place == depth - 1, 0, place + 1)
