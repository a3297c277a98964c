"""The CRC32C by which a card knows that a compressed packet has arrived as it left."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import In, Out

from gradwire_gateware.nic.packets import ADDRESSES_AT, ETHERNET_NBYTES, IP_NBYTES, TCP, big, folded, swapped
from gradwire_gateware.stream import Circuit, Pipeline, clipped, first_bytes, sum_of

# What meters have in common: they watch a frame that passes and give one result at the end of its packet.


class Meter(Circuit):
    """A watch on frames, with a ``result`` for each.

    A word is watched in a cycle in which ``moves`` is high. ``end`` and ``headers`` are the bytes of the
    frame up to the end of its packet and of its headers, constant while it passes; what follows the packet
    doesn't count. ``done`` is high for one cycle, in which the result is there. It ``is_whole`` unless the
    frame has ended before its packet.
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
    """The first stage of a meter: a word, the bytes of it that belong to the packet, and their place."""

    data: Value
    counted: Value
    """A bit for each byte."""
    marks: Value
    """Is there a word; is it the first, and is it the last one of its packet; is the packet whole."""

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
"""The bytes whose contributions are added up in one stage."""
_GAP_NBYTES = 4
"""The CRC itself, which it leaves out."""


class Seal(Meter):
    """A meter whose ``result`` is the CRC32C of a compressed packet, in the order of its bytes there.

    It covers four bytes that are the codec's, the addresses of IP, TCP's header, the shim without the CRC,
    and the body. What stands before the CRC counts four bytes later than it stands, so that no gap is left. A
    CRC is linear: each word contributes what its bytes alone give, which takes two stages, and the state of
    before moves on by a word. Zeros before the first byte contribute nothing, and those after the last one
    are taken back in as many stages as their number has bits.
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
            moved = Cat(_product(state, [_moved(1 << bit, size) for bit in range(32)]))
            m.d.sync += state.eq(Mux(first, 0, moved) ^ given)
        done = stage.hold(valid & last, resets=True)
        is_whole, padding = stage.hold(is_whole), stage.hold(padding)
        result: Value = state
        for bit in range(len(padding)):
            back = Cat(_product(result, [_moved_back(1 << at, 1 << bit) for at in range(32)]))
            result = stage.hold(Mux(padding[bit], back, result))
            done, is_whole = stage.hold(done, resets=True), stage.hold(is_whole)
            padding = stage.hold(padding)
        m.d.comb += [self.result.eq(~big(result, 0, 4)), self.done.eq(done), self.is_whole.eq(is_whole)]

    def _without_gap(self, m: Module, stage: Pipeline, window: Window, size: int) -> tuple[Value, Value]:
        """Return the register of the bytes that count, moved together, with the codec's state among them."""
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
    """Return a state eight zero bits later."""
    for _ in range(8):
        state = state >> 1 ^ (_POLYNOMIAL if state & 1 else 0)
    return state


def _before(state: int) -> int:
    """Return a state eight zero bits before."""
    for _ in range(8):
        state = ((state ^ _POLYNOMIAL) << 1 | 1) if state >> 31 else state << 1
    return state


def _moved(state: int, nbytes: int) -> int:
    for _ in range(nbytes):
        state = _next(state)
    return state


def _moved_back(state: int, nbytes: int) -> int:
    for _ in range(nbytes):
        state = _before(state)
    return state


def _columns(size: int) -> list[int]:
    """Return the state after a word for each of its bits, if all others are 0."""
    states = [_next(1 << bit) for bit in range(8)]
    columns = list(states)
    for _ in range(size - 1):
        states = [_next(state) for state in states]
        columns = states + columns
    return columns


def _product(value: Value, columns: list[int]) -> list[Value]:
    """Return the bits of the sum of the columns whose bits are set in a value."""
    rows = [sum((columns[at] >> bit & 1) << at for at in range(len(value))) for bit in range(32)]
    return [(value & row).xor() for row in rows]


# The sum of 16-bit words that TCP's checksum is made of, over a frame that passes.


class TcpSum(Meter):
    """A meter whose ``result`` is a packet's checksum if its own is 0, and 0 if that is there and right.

    Halves of 32 bits are added in the order of their bytes in memory, so that the result's low byte comes
    first. Stages: which bytes count; those; sums of four halves, twice; all words' sum; that folded twice.
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
        marks = stage.hold(window.marks, resets=True)
        header = stage.hold(swapped(length) + (TCP << 8))

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
