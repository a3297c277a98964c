"""Queues of records between the parts of a block, and memories for words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth import Cat, Const, Module, Mux, ResetInserter, Shape, Signal, Value
from amaranth.lib import data
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory

from gradwire_gateware.stream import LutFIFO, Pipeline, SkidBuffer, enter, flat, forward, leave, stream

# A queue in block RAM that computes one cycle ahead whether it has a word and room.


class BlockFIFO(SyncFIFOBuffered):
    """A cycle-accurate ``SyncFIFOBuffered`` of at least two words, whose status signals are registers.

    Comparing the level would take too long before the wires to block RAMs spread over the chip.
    """

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the module, with words in a memory and the first word in an output register."""
        m = Module()
        places = self.depth - 1
        m.submodules.storage = storage = Memory(shape=self.width, depth=places, init=[])
        write, read = storage.write_port(), storage.read_port(domain="sync")
        held, has_word, has_room = Signal(range(places + 1)), Signal(), Signal(init=1)
        writes, reads = Signal(), Signal()
        m.d.comb += [
            self.w_rdy.eq(has_room),
            self.level.eq(held + self.r_rdy),
            self.w_level.eq(self.level),
            self.r_level.eq(self.level),
            writes.eq(has_room & self.w_en),
            reads.eq(has_word & (~self.r_rdy | self.r_en)),
            write.data.eq(self.w_data),
            write.en.eq(writes),
            read.en.eq(reads),
            self.r_data.eq(read.data),
        ]
        m.d.sync += [
            held.eq(held + writes - reads),
            has_word.eq(writes | (held > 1) | ((held == 1) & ~reads)),
            has_room.eq(reads | (held < places - 1) | ((held == places - 1) & ~writes)),
            self.r_rdy.eq(reads | (self.r_rdy & ~self.r_en)),
        ]
        with m.If(writes):
            m.d.sync += write.addr.eq(_next(write.addr, places))
        with m.If(reads):
            m.d.sync += read.addr.eq(_next(read.addr, places))
        return m


def _next(address: Value, places: int) -> Value:
    return Mux(address == places - 1, 0, address + 1)[: len(address)]


_FILLED = 5
"""A queue reports room while it has fewer records than this. Ten more records may be in flight."""
_ON_THEIR_WAY = 8
"""The number of words that may still arrive at a memory that reports no room."""
_SMALL = 15
"""The largest number of words of a LUT RAM memory without a buffer. ``LutFIFO`` keeps one entry free."""
_MOST_IN_LUTS = 64
"""The largest number of records of a queue in LUT RAM. Larger queues use block RAM."""


class Queue:
    """A queue of records.

    While ``has`` is high, ``first`` is the first record, which leaves with ``takes``. ``first`` is a
    register, because control signals depend on it within the cycle. ``has_room`` is also a register, and is
    high while fewer than ``filled`` records wait behind the first record.
    """

    def __init__(
        self, m: Module, name: str, layout: dict[str, int], depth: int = 15, filled: int = _FILLED
    ) -> None:
        self._m, self._layout = m, data.StructLayout(layout)
        kind = LutFIFO if depth <= _MOST_IN_LUTS else SyncFIFOBuffered
        m.submodules[name] = self._fifo = kind(width=Shape.cast(self._layout).width, depth=depth)
        first = Signal(Shape.cast(self._layout).width, name=f"{name}_first", reset_less=True)
        self.first: Any = self._layout(first)
        self.has, self.takes = Signal(name=f"{name}_has"), Signal(name=f"{name}_takes")
        m.d.comb += self._fifo.r_en.eq(~self.has | self.takes)
        with m.If(self._fifo.r_en):
            m.d.sync += [first.eq(self._fifo.r_data), self.has.eq(self._fifo.r_rdy)]
        self.has_room = Signal(init=1, name=f"{name}_has_room")
        # One more record may arrive before the register is updated.
        m.d.sync += self.has_room.eq(self._fifo.level < filled)

    def put(self, when: Value, **fields: Value) -> None:
        """Add a record in each cycle in which ``when`` is high. Only one call is allowed."""
        record: Any = self._layout(self._fifo.w_data)
        self._m.d.comb += self._fifo.w_en.eq(when)
        self._m.d.comb += [record[name].eq(value) for name, value in fields.items()]


def taken_together(m: Module, plans: Queue, parts: Sequence[Queue], behind: Sequence[Queue]) -> Value:
    """Return the signal that takes a plan and, if it is ``wanted``, a record of each part.

    The signal needs all records, and room in the queues ``behind``. One more record may arrive in these
    queues before the registered room signal is updated.
    """
    has_room = Signal(init=1)
    m.d.sync += has_room.eq(Cat(queue.has_room for queue in behind).all())
    has_plan, has_parts = plans.has & has_room, Cat(part.has for part in parts).all()
    m.d.comb += [
        plans.takes.eq(has_plan & (~plans.first.wanted | has_parts)),
        *(part.takes.eq(has_plan & plans.first.wanted & has_parts) for part in parts),
    ]
    return plans.takes


def memory(m: Module, name: str, come: Any, depth: int, *, is_apart: bool = False) -> Any:
    """Return the output stream of a memory for ``come``, through a buffer, because block RAM is slow.

    With ``is_apart``, for distant block RAMs or producers, the status signals are registers.
    """
    fifo, leaving = _stored(m, name, come, depth, block=BlockFIFO if is_apart else SyncFIFOBuffered)
    m.d.comb += come.tready.eq(fifo.w_rdy)
    return leaving


def open_memory(
    m: Module, name: str, come: Any, depth: int, on_their_way: int = _ON_THEIR_WAY, *, is_far: bool = False
) -> tuple[Any, Signal]:
    """Return the output stream of a memory that never stalls ``come``, and the register ``has_room``.

    The source must start no word while ``has_room`` is low; ``on_their_way`` words may still arrive. So no
    signal has to stall all registers of a pipeline within a cycle. The output of block RAM is half a cycle
    late; with ``is_far``, for memories of many blocks distant from the consumer, a register follows directly.
    """
    fifo, leaving = _stored(m, name, come, depth + on_their_way, is_far=is_far)
    has_room = Signal(init=1, name=f"{name}_has_room")
    m.d.comb += come.tready.eq(1)
    m.d.sync += has_room.eq(fifo.level <= depth)
    return leaving, has_room


def counted_memory(m: Module, name: str, come: Any, begins: Value, late: int = 0) -> tuple[Any, Signal]:
    """Return the output stream of a memory in LUT RAM, and a register that allows one more word.

    A word's entry is reserved from the cycle of ``begins`` until one cycle after the word leaves. So the
    stages from ``begins`` to ``come``, up to nine, never stall, and run at full throughput. If ``begins`` is
    some cycles ``late``, as many entries are kept free.
    """
    _, leaving = _stored(m, name, come, _SMALL)
    places = Signal(range(_SMALL + 1), init=_SMALL, name=f"{name}_places")
    has_room = Signal(init=1, name=f"{name}_has_room")
    left = Signal(name=f"{name}_left")  # registered, because the consumer may be distant
    m.d.comb += come.tready.eq(1)
    m.d.sync += [
        left.eq(leaving.tvalid & leaving.tready),
        places.eq(places + left - begins),
        has_room.eq(places > 1 + late),  # one more word may start before the register is updated
    ]
    return leaving, has_room


def _stored(
    m: Module, name: str, come: Any, depth: int, *, is_far: bool = False, block: type = SyncFIFOBuffered
) -> tuple[Any, Any]:
    """Return a memory for the words of ``come`` and its output stream. The caller drives ``tready``."""
    kind = LutFIFO if depth <= _SMALL else block
    m.submodules[name] = fifo = kind(width=len(flat(come)), depth=depth)
    leaving = stream(len(come.tdata))
    m.d.comb += [*enter(fifo, come), *leave(fifo, leaving)]
    if kind is LutFIFO:
        return fifo, leaving
    if is_far:
        return fifo, _registered(m, name, leaving)
    m.submodules[f"{name}_out"] = buffer = SkidBuffer(len(come.tdata))
    m.d.comb += forward(leaving, buffer.s_axis)
    return fifo, buffer.m_axis


def _registered(m: Module, name: str, come: Any) -> Any:
    """Return ``come`` behind a register that never stalls, and a buffer with room for its word."""
    m.submodules[f"{name}_out"] = words = LutFIFO(width=len(flat(come)), depth=4)
    held = Signal(len(flat(come)), name=f"{name}_held", reset_less=True)
    is_there, out = Signal(name=f"{name}_there"), stream(len(come.tdata))
    m.d.comb += [
        come.tready.eq(words.level < 3), words.w_data.eq(held), words.w_en.eq(is_there), *leave(words, out)
    ]  # fmt: skip
    m.d.sync += [held.eq(flat(come)), is_there.eq(come.tvalid & come.tready)]
    return out


# Records in block RAM that can be read again until they are freed.

_AHEAD = 16
"""The number of entries of the LUT RAM. One half is filled, and the other half is for records in flight."""


class RewindingQueue:
    """A queue of records that can be read again.

    While ``has`` is high, ``first`` is valid, and ``takes`` advances to the next record. A taken record keeps
    its entry until ``frees``, which frees the oldest record in each cycle. ``rewinds`` restarts reading at
    the oldest record, a few cycles later. In the cycle of ``rewinds``, no record may be taken or freed, and
    in the cycle before, none may be freed. ``has_room`` is a register that is high while the memory has fewer
    than ``filled`` records; one more record may arrive. A few records are also in LUT RAM, so that ``takes``
    doesn't have to stall the block RAM.
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
        frees, fetched = stage.hold(self.frees, resets=True), stage.hold(fetches & ~self.rewinds, resets=True)
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
            m.d.sync += end.eq(_next(end, depth))
        with m.If(frees):
            m.d.sync += begin.eq(_next(begin, depth))
        with m.If(fetches):
            m.d.sync += at.eq(_next(at, depth))
        m.d.sync += [
            may_fetch.eq(ahead.level < _AHEAD // 2),
            unread.eq(unread + self._write.en - fetches),
            used.eq(used + self._write.en - frees),
            self.has_room.eq(used < filled),
        ]
        with m.If(self.rewinds):
            m.d.sync += [at.eq(begin), unread.eq(used + self._write.en)]

    def put(self, when: Value, **fields: Value) -> None:
        """Add a record in each cycle in which ``when`` is high. Only one call is allowed."""
        record: Any = self._layout(self._write.data)
        self._m.d.comb += self._write.en.eq(when)
        self._m.d.comb += [record[name].eq(value) for name, value in fields.items()]
