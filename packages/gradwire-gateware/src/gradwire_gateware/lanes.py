"""Lanes: parallel blocks that process the packets of a wide stream in turn.

A wide word has one piece for each lane. All lanes share one memory with a bank for each piece, so that a wide
word is transferred in one cycle. The lanes access the banks in rotation: in each cycle, every lane uses a
different bank. A lane transfers a wide word piece by piece, one per cycle, and starts in its ``slot``, one
cycle of each rotation.
"""

from __future__ import annotations

from typing import Any

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from gradwire_gateware.queues import Queue
from gradwire_gateware.stream import AxiStream, Circuit, LutFIFO, Pipeline, enter, flat

_LATENCY = 8
"""The largest latency in cycles between the queue of a lane and the memory."""


class _Lanes(Circuit):
    """The base class of both directions: the shared memory and the rotation of the lanes."""

    def __init__(self, width: int, lanes: int, chunk_words: int, ports: dict[str, Any]) -> None:
        self._width, self._lanes = width, lanes
        rows = max(4, -(-chunk_words // lanes))
        self._row_bits = (rows - 1).bit_length()
        """The number of bits of a wide word's address in a lane's memory."""
        self._waiting = 2 * lanes + _LATENCY
        """The queue depth of a lane in narrow words, enough for a wide word in each slot."""
        super().__init__(ports)

    def _slots(self, m: Module) -> Signal:
        """Return the current slot, one-hot over the lanes."""
        slot = Signal(self._lanes, init=1)
        m.d.sync += slot.eq(slot.rotate_left(1))
        return slot

    def _in_turn(self, m: Module, values: list[Value], begin: int) -> Value:
        """Return the values in rotation, one per cycle, starting with number ``begin``."""
        at = Signal(range(self._lanes), init=begin % self._lanes)
        m.d.sync += at.eq(Mux(at == self._lanes - 1, 0, at + 1))
        return Value.cast(Array(values)[at])

    def _bank(self, m: Module, piece: int, bits: int) -> tuple[Any, Any]:
        """Return a bank's write port, and its read port, with a latency of one cycle."""
        m.submodules[f"bank{piece}"] = memory = Memory(
            shape=bits, depth=self._lanes << self._row_bits, init=[]
        )
        return memory.write_port(), memory.read_port()

    def _places(self, name: str) -> tuple[list[Signal], list[Value]]:
        """Return the register of each lane's row, and the row's address in the banks."""
        rows = [Signal(self._row_bits, name=f"{name}{lane}") for lane in range(self._lanes)]
        bits = (self._lanes - 1).bit_length()
        return rows, [Cat(row, Const(lane, bits)) for lane, row in enumerate(rows)]

    def _packets(self, m: Module, moves: Value, ends: Value) -> tuple[Signal, Signal]:
        """Return the current lane on the wide side, one-hot, and the address of its wide word.

        ``ends`` selects the next lane. The address is a register, so no multiplexer precedes the banks.
        """
        here, place = Signal(self._lanes, init=1), Signal(self._row_bits + (self._lanes - 1).bit_length())
        rows, places = self._places("wide_row")
        after = (place[: self._row_bits] + 1)[: self._row_bits]
        following = here.rotate_left(1)
        with m.If(moves & ends):
            m.d.sync += [here.eq(following), place.eq(_chosen(places, following))]
        with m.Elif(moves):
            m.d.sync += place[: self._row_bits].eq(after)
        for row, is_here in zip(rows, here, strict=True):
            with m.If(moves & is_here):
                m.d.sync += row.eq(after)
        return here, place


class Distributor(_Lanes):
    """A distributor of packets from a stream of ``lanes`` times ``width`` bits to narrow streams in turn.

    A packet enters the memory, which holds ``chunk_words`` narrow words per lane, at the wide stream's rate.
    The packet leaves at the narrow stream's rate, while the other lanes receive their packets. A longer
    packet stalls the wide stream.
    """

    def __init__(self, width: int, *, lanes: int = 4, chunk_words: int = 512) -> None:
        ports = {"s_axis": In(AxiStream(lanes * width)), "lane": Out(AxiStream(width)).array(lanes)}
        super().__init__(width, lanes, chunk_words, ports)

    def _describe(self, m: Module) -> None:
        come, lanes = self.s_axis, self._lanes
        free = Pipeline(m, Const(1))
        slot, moves = self._slots(m), come.tvalid & come.tready
        here, write_at = self._packets(m, moves, come.tlast)
        has_room, may_begin, begun = Signal(lanes, init=-1), Signal(lanes), Signal(lanes)
        rows, places = self._places("row")
        m.d.comb += come.tready.eq((has_room & here).any())
        begins = Signal(lanes)
        m.d.comb += begins.eq(slot & may_begin)
        reads, read_at = free.hold(begins.any(), resets=True), free.hold(_chosen(places, slot))

        size = self._width // 8
        pieces = []
        for piece in range(lanes):
            data, keep = come.tdata.word_select(piece, self._width), come.tkeep.word_select(piece, size)
            follows = come.tkeep[(piece + 1) * size] if piece + 1 < lanes else Const(0, 1)
            put, get = self._bank(m, piece, self._width + size + 1)
            m.d.comb += [
                put.data.eq(Cat(data, keep, come.tlast & ~follows)),
                Cat(put.addr, put.en).eq(Cat(write_at, moves)),
                Cat(get.addr, get.en).eq(Cat(read_at, reads)),
            ]
            shown = free.hold(reads, resets=True)
            word = free.hold(get.data)  # block RAM is slow
            has_bytes = word[self._width] if piece else Const(1, 1)
            pieces.append(Cat(free.hold(shown, resets=True), has_bytes, word))
            reads, read_at = free.hold(reads, resets=True), free.hold(read_at)
        most = 2**self._row_bits
        for lane, row in enumerate(rows):
            is_here, in_slot = moves & here[lane], slot[lane]
            leaves = self._give(m, lane, self._in_turn(m, pieces, -lane - 3), begins[lane])
            # A wide word's entry is free once its last piece has been read, in the next slot.
            frees = in_slot & begun[lane]
            stored, used = (Signal(self._row_bits + 1, name=f"{name}{lane}") for name in ("stored", "used"))
            m.d.sync += [
                stored.eq(stored + is_here - begins[lane]),
                used.eq(used + is_here - frees),
                has_room[lane].eq((used < most - 1) | ((used == most - 1) & ~is_here)),
                may_begin[lane].eq((stored != 0) & leaves),
            ]
            with m.If(begins[lane]):
                m.d.sync += row.eq(row + 1)
            with m.If(in_slot):
                m.d.sync += begun[lane].eq(begins[lane])

    def _give(self, m: Module, lane: int, piece: Value, begins: Value) -> Value:
        """Write a lane's pieces to its queue, and return whether the queue has room for another wide word."""
        m.submodules[f"queue{lane}"] = queue = LutFIFO(width=len(piece) - 2, depth=self._waiting)
        comes, has_bytes, word = piece[0], piece[1], piece[2:]
        out, moves = self.lane[lane], Signal(name=f"moves{lane}")
        stage = Pipeline(m, moves)
        m.d.comb += [
            queue.w_data.eq(word),
            queue.w_en.eq(comes & has_bytes),
            moves.eq(~out.tvalid | out.tready),
            queue.r_en.eq(moves),
            flat(out).eq(stage.hold(queue.r_data)),
            out.tvalid.eq(stage.hold(queue.r_rdy, resets=True)),
        ]
        expected = Signal(range(self._waiting + 1), name=f"expected{lane}")
        left = (queue.r_rdy & queue.r_en) + (comes & ~has_bytes)
        m.d.sync += expected.eq(expected + Mux(begins, self._lanes, 0) - left)
        return expected <= self._waiting - self._lanes


class Collector(_Lanes):
    """The inverse of ``Distributor``: a collector of packets from narrow streams into a wide stream."""

    def __init__(self, width: int, *, lanes: int = 4, chunk_words: int = 512) -> None:
        ports = {"lane": In(AxiStream(width)).array(lanes), "m_axis": Out(AxiStream(lanes * width))}
        super().__init__(width, lanes, chunk_words, ports)

    def _describe(self, m: Module) -> None:
        out, lanes, size = self.m_axis, self._lanes, self._width // 8
        free = Pipeline(m, Const(1))
        slot, begins, may_begin = self._slots(m), Signal(lanes), Signal(lanes)
        m.d.comb += begins.eq(slot & may_begin)
        rows, places = self._places("row")
        writes, write_at = free.hold(begins.any(), resets=True), free.hold(_chosen(places, slot))
        taken = [self._take(m, lane, begins[lane]) for lane in range(lanes)]
        pieces = [piece for piece, _ in taken]

        takes = Signal()
        m.d.comb += takes.eq(~out.tvalid | out.tready)
        words, ends = [], Const(0, 1)
        gets = []
        for at in range(lanes):
            bits = self._width + size + (at == lanes - 1)  # the last bank's extra bit ends packets
            word = free.hold(self._in_turn(m, pieces, -1 - at))
            writes, write_at = free.hold(writes, resets=True), free.hold(write_at)
            put, get = self._bank(m, at, bits)
            m.d.comb += [put.data.eq(word[:bits]), Cat(put.addr, put.en).eq(Cat(write_at, writes))]
            words.append(get.data)
            gets.append(get)
            ends = word[-1]

        # A wide word is complete with its last piece; then a queue records whether the word ends a packet.
        queues, has_word, last = [], Signal(lanes), Signal(lanes)
        written = slot.rotate_right(lanes + 1)
        for lane in range(lanes):
            queue = Queue(m, f"words{lane}", {"ends": 1}, 2**self._row_bits)
            queue.put(writes & written[lane], ends=ends)
            m.d.comb += [has_word[lane].eq(queue.has), last[lane].eq(queue.first.ends)]
            queues.append(queue)
        moves, ends_now = Signal(), Signal()
        here, read_at = self._packets(m, moves, ends_now)
        m.d.comb += [moves.eq(takes & (has_word & here).any()), ends_now.eq((last & here).any())]
        m.d.comb += [Cat(get.addr, get.en).eq(Cat(read_at, moves)) for get in gets]
        for lane, (queue, (_, has_group)) in enumerate(zip(queues, taken, strict=True)):
            leaves = moves & here[lane]
            used = Signal(self._row_bits + 1, name=f"used{lane}")
            m.d.comb += queue.takes.eq(leaves)
            m.d.sync += [used.eq(used + begins[lane] - leaves), may_begin[lane].eq(has_group & ~used[-1])]
            with m.If(begins[lane]):
                m.d.sync += rows[lane].eq(rows[lane] + 1)
        stage = Pipeline(m, takes)
        word = Cat(*(each[: self._width] for each in words), *(each[self._width :] for each in words))
        m.d.comb += [
            flat(out).eq(stage.hold(word)),
            out.tvalid.eq(stage.hold(stage.hold(moves, resets=True), resets=True)),
        ]

    def _take(self, m: Module, lane: int, begins: Value) -> tuple[Value, Value]:
        """Return a lane's next piece, empty after a packet's end, and whether a wide word has arrived."""
        come = self.lane[lane]
        m.submodules[f"queue{lane}"] = queue = LutFIFO(width=len(flat(come)), depth=self._waiting)
        m.d.comb += [*enter(queue, come), come.tready.eq(queue.w_rdy)]
        place = Signal(range(self._lanes), name=f"place{lane}")
        groups = Signal(range(self._waiting + 1), name=f"groups{lane}")
        moves, closes = come.tvalid & come.tready, come.tlast | (place == self._lanes - 1)
        with m.If(moves):
            m.d.sync += place.eq(Mux(closes, 0, place + 1))
        m.d.sync += groups.eq(groups + (moves & closes) - begins)

        left, ended = Signal(range(self._lanes + 1), name=f"left{lane}"), Signal(name=f"ended{lane}")
        word = queue.r_data
        m.d.comb += queue.r_en.eq((left != 0) & ~ended)
        with m.If(begins):
            m.d.sync += [left.eq(self._lanes), ended.eq(0)]
        with m.Elif(left != 0):
            m.d.sync += [left.eq(left - 1), ended.eq(ended | word[-1])]
        data, keep = word[: self._width], word[self._width : -1]
        return Cat(data, Mux(ended, 0, keep), ended | word[-1]), groups != 0


def _chosen(values: list[Value], here: Value) -> Value:
    """Return the value selected by the one-hot signal ``here``."""
    chosen: Value = Const(0, len(values[0]))
    for value, bit in zip(values, here, strict=True):
        chosen = chosen | (value & bit.replicate(len(value)))
    return chosen
