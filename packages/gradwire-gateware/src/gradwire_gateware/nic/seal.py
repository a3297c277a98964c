"""The CRC32C that protects a compressed packet, and TCP's checksum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import In, Out

from gradwire_gateware.nic.packets import ADDRESSES_AT, ETHERNET_NBYTES, IP_NBYTES, TCP, big, folded, swapped
from gradwire_gateware.stream import Circuit, Pipeline, clipped, first_bytes, sum_of

# The base of meters, which read passing frames and output one result at the end of each packet.


class Meter(Circuit):
    """A monitor of frames that outputs a ``result`` for each frame.

    A word is read in a cycle in which ``moves`` is high. ``end`` and ``headers`` are the numbers of bytes of
    the frame up to the end of its packet and of its headers, both constant during the frame. Bytes after the
    packet are ignored. ``done`` is high in the one cycle in which the result is valid. ``is_whole`` is low if
    the frame ended before its packet.
    """

    RESULT_BITS: int

    def __init__(self, width: int) -> None:
        super().__init__(
            {
                "data": In(width),
                "keep": In(width // 8),
                "last": In(1),
                "moves": In(1),
                "end": In(16),
                "headers": In(7),
                "done": Out(1),
                "is_whole": Out(1),
                "result": Out(self.RESULT_BITS),
            }
        )


class Window:
    """The first stage of a meter: a word, and the mask of the bytes that belong to the packet."""

    data: Value
    counted: Value
    """The mask of the packet's bytes."""
    marks: Value
    """Four flags: a valid word, the packet's first word, its last word, and a whole packet."""

    def __init__(self, m: Module, stage: Pipeline, ports: Any) -> None:
        size = len(ports.keep)
        within, left, is_over = Signal(), Signal(len(ports.end)), Signal()
        rest = Mux(within, left, ports.end)
        ends = rest <= size
        valid = ports.moves & ~(within & is_over)
        with m.If(ports.moves):
            m.d.sync += [within.eq(~ports.last), left.eq(rest - size), is_over.eq((within & is_over) | ends)]
        self.within = within
        self.data = stage.hold(ports.data)
        self.count = stage.hold(clipped(rest, size))
        self.counted = Signal(size)
        m.d.comb += self.counted.eq(first_bytes(self.count, size))
        keep, ends, self.is_first = stage.hold(ports.keep), stage.hold(ends), stage.hold(~within)
        is_whole = ends & ~(self.counted & ~keep).any()
        last = stage.hold(ports.last | (rest <= size))
        self.marks = Cat(stage.hold(valid, resets=True), self.is_first, last, is_whole)


_POLYNOMIAL = 0x82F6_3B78
_PART = 8
"""The number of bytes whose contributions are summed in one stage."""
_GAP_NBYTES = 4
"""The size of the CRC. The CRC doesn't cover itself."""


class Seal(Meter):
    """A meter whose ``result`` is the CRC32C of a compressed packet, in the packet's byte order.

    The CRC covers four bytes of codec settings, the IP addresses, TCP's header, the shim without the CRC, and
    the body. The bytes before the CRC are shifted by four, so that no gap is left. A CRC is linear: each
    word's contribution is computed from its bytes alone, in two stages, and added to the previous state
    advanced by a word. Zeros before the first byte contribute nothing. Zeros after the last byte are undone
    in one stage per bit of their number.
    """

    RESULT_BITS = 32

    def __init__(self, width: int, codec: bytes) -> None:
        state = 0xFFFF_FFFF
        for byte in codec:
            state = _next(state ^ byte)
        self._seed = state
        super().__init__(width)

    def _describe(self, m: Module) -> None:
        stage = Pipeline(m, Const(1))
        window = Window(m, stage, self)
        size = len(self.keep)
        words, first = self._without_gap(m, stage, window, size)
        padding = stage.hold((size - window.count)[: size.bit_length() - 1])
        marks = stage.hold(window.marks, resets=True)

        columns = _columns(size)
        parts = [
            [stage.hold(bit) for bit in _product(words[8 * at : 8 * (at + _PART)], columns[8 * at :])]
            for at in range(0, size, _PART)
        ]
        marks, padding = stage.hold(marks, resets=True), stage.hold(padding)
        given = stage.hold(Cat(Cat(part[bit] for part in parts).xor() for bit in range(32)))
        marks, padding = stage.hold(marks, resets=True), stage.hold(padding)

        valid, first, last, is_whole = marks
        state = Signal(32, reset_less=True)
        with m.If(valid):
            moved = Cat(_product(state, [_moved(1 << bit, size, _next) for bit in range(32)]))
            m.d.sync += state.eq(Mux(first, 0, moved) ^ given)
        done = stage.hold(valid & last, resets=True)
        is_whole, padding = stage.hold(is_whole), stage.hold(padding)
        result: Value = state
        for bit in range(len(padding)):
            back = Cat(_product(result, [_moved(1 << at, 1 << bit, _before) for at in range(32)]))
            result = stage.hold(Mux(padding[bit], back, result))
            done, is_whole, padding = stage.hold(done, resets=True), stage.hold(is_whole), stage.hold(padding)
        m.d.comb += [self.result.eq(~big(result, 0, 4)), self.done.eq(done), self.is_whole.eq(is_whole)]

    def _without_gap(self, m: Module, stage: Pipeline, window: Window, size: int) -> tuple[Value, Value]:
        """Return the register of the covered bytes without the gap, with the codec's seed added."""
        left, index = Signal(7), Signal(range(3))
        rest = Mux(window.within, left, self.headers + 2 * _GAP_NBYTES)[:7]
        carried = Signal(8 * _GAP_NBYTES, reset_less=True)
        with m.If(self.moves):
            m.d.sync += [
                left.eq(Mux(rest < size, 0, rest - size)),
                index.eq(Mux(self.last, 0, Mux(index == 2, 2, index + 1))),
                carried.eq(self.data[-8 * _GAP_NBYTES :]),
            ]
        is_late = Signal(size)
        m.d.comb += is_late.eq(first_bytes(stage.hold(clipped(rest, size)), size))
        late = Cat(stage.hold(carried), window.data[: -8 * _GAP_NBYTES])
        place = stage.hold(index)
        start = ADDRESSES_AT + _GAP_NBYTES
        mixed = []
        for at in range(size):
            byte = Mux(is_late[at], late.word_select(at, 8), window.data.word_select(at, 8))
            byte = Mux(window.counted[at], byte, 0)
            for word in range(2):
                where = word * size + at - start
                if where < 0:
                    byte = Mux(place == word, 0, byte)
                elif where < 4:
                    byte = byte ^ Mux(place == word, self._seed >> 8 * where & 0xFF, 0)
            mixed.append(byte)
        return stage.hold(Cat(mixed)), window.is_first


def _next(state: int) -> int:
    """Return a CRC's state after eight more zero bits."""
    for _ in range(8):
        state = state >> 1 ^ (_POLYNOMIAL if state & 1 else 0)
    return state


def _before(state: int) -> int:
    """Return a CRC's state before the last eight zero bits."""
    for _ in range(8):
        state = ((state ^ _POLYNOMIAL) << 1 | 1) if state >> 31 else state << 1
    return state


def _moved(state: int, nbytes: int, step: Callable[[int], int]) -> int:
    for _ in range(nbytes):
        state = step(state)
    return state


def _columns(size: int) -> list[int]:
    """Return, for each bit of a word, the state after the word if only this bit of the word is 1."""
    states = [_next(1 << bit) for bit in range(8)]
    columns = list(states)
    for _ in range(size - 1):
        states = [_next(state) for state in states]
        columns = states + columns
    return columns


def _product(value: Value, columns: list[int]) -> list[Value]:
    """Return the bits of the XOR of the columns whose bits are set in ``value``."""
    rows = [sum((columns[at] >> bit & 1) << at for at in range(len(value))) for bit in range(32)]
    return [(value & row).xor() for row in rows]


# The sum of 16-bit words for TCP's checksum, over a passing frame.


class TcpSum(Meter):
    """A meter of a packet's TCP checksum: 0 if the checksum is correct, the correct one if it is 0.

    16-bit words are added in little-endian order, so that the result's low byte is first in the packet.
    The stages are: the mask; masking; sums of four words, twice; the frame's sum; and two that fold it.
    """

    RESULT_BITS = 16

    def _describe(self, m: Module) -> None:
        stage = Pipeline(m, Const(1))
        window = Window(m, stage, self)
        length = stage.hold((self.end - (ETHERNET_NBYTES + IP_NBYTES))[:16])
        size = len(self.keep)
        counted = [
            window.counted[at] & ~(window.is_first if at < ADDRESSES_AT else Const(0, 1))
            for at in range(size)
        ]
        bits = Cat(bit.replicate(8) for bit in counted)
        masked = stage.hold(window.data & bits)
        marks, header = stage.hold(window.marks, resets=True), stage.hold(swapped(length) + (TCP << 8))

        halves: list[Value] = [masked.word_select(at, 16) for at in range(size // 2)]
        halves = [stage.hold(sum_of(halves[at : at + 4])) for at in range(0, len(halves), 4)]
        marks, header = stage.hold(marks, resets=True), stage.hold(header)
        sums = [stage.hold(sum_of(halves[at : at + 4])) for at in range(0, len(halves), 4)]
        marks, header = stage.hold(marks, resets=True), stage.hold(header)

        valid, is_first, is_last, is_whole = marks
        total = Signal(31, reset_less=True)
        with m.If(valid):
            m.d.sync += total.eq(Mux(is_first, header, total) + sum_of(sums))
        done, is_whole = stage.hold(valid & is_last, resets=True), stage.hold(is_whole)
        once = stage.hold(folded(total))
        done, is_whole = stage.hold(done, resets=True), stage.hold(is_whole)
        m.d.comb += [
            self.result.eq(~stage.hold(folded(once)[:16])),
            self.done.eq(stage.hold(done, resets=True)),
            self.is_whole.eq(stage.hold(is_whole)),
        ]
