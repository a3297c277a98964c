"""AXI streams, and the registers between their producers and consumers.

A word is ``width`` bits; byte 0 is in bits 7..0. Words travel in cycles in which ``tvalid`` and ``tready``
are both high. Once ``tvalid`` is high, the word stays until it has travelled. ``tlast`` marks the last word
of a packet, and only that word may be partial: its kept bytes come first. A packet without any byte is one
last word that keeps nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out


class Circuit(wiring.Component):
    """A component of this package: a subclass describes its circuit in a module, the same for all chips."""

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the module with the circuit."""
        m = Module()
        self._describe(m)
        return m

    def _describe(self, m: Module) -> None:
        raise NotImplementedError


# A queue in LUT RAM that writes its next place in every cycle.

_PLACES = 16
"""The words of a LUT RAM. Fewer take as much room."""


class LutFIFO(SyncFIFO):
    """A ``SyncFIFO`` whose writes wait for nothing, because a wide LUT RAM is all over the chip.

    Whether a word comes, and has room, moves the address alone, which is near its producer. Until then, the
    place that it would take is written in every cycle; that place is free as long as there are more places
    than words, which holds unless ``depth`` is a power of two of 16 or more.
    """

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit. The memory has a power of two of places, so that addresses wrap."""
        m = Module()
        places = max(_PLACES, 1 << (self.depth - 1).bit_length())
        m.submodules.storage = storage = Memory(shape=self.width, depth=places, init=[])
        write, read = storage.write_port(), storage.read_port(domain="comb")
        writes, reads = Signal(), Signal()
        m.d.comb += [
            self.w_rdy.eq(self.level != self.depth),
            self.r_rdy.eq(self.level != 0),
            self.w_level.eq(self.level),
            self.r_level.eq(self.level),
            writes.eq(self.w_rdy & self.w_en),
            reads.eq(self.r_rdy & self.r_en),
            write.data.eq(self.w_data),
            write.en.eq(1 if self.depth < places else writes),
            self.r_data.eq(read.data),
        ]
        m.d.sync += [write.addr.eq(write.addr + writes), read.addr.eq(read.addr + reads)]
        with m.If(writes & ~reads):
            m.d.sync += self.level.eq(self.level + 1)
        with m.If(~writes & reads):
            m.d.sync += self.level.eq(self.level - 1)
        return m


class AxiStream(wiring.Signature):
    """The signals of a stream, in the direction of its producer."""

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__(
            {
                "tdata": Out(width),
                "tkeep": Out(width // 8),
                "tvalid": Out(1),
                "tready": In(1),
                "tlast": Out(1),
            }
        )


def block_ports(width: int) -> dict[str, Any]:
    """Return the ports of a block that reads one stream and writes one."""
    return {"s_axis": In(AxiStream(width)), "m_axis": Out(AxiStream(width))}


class Pipeline:
    """A source of registers of a module that all load in the cycles in which ``enable`` is high."""

    def __init__(self, m: Module, enable: Value) -> None:
        self._m = m
        self._enable = enable

    def hold(self, value: Value, *, resets: bool = False) -> Signal:
        """Return a register that loads ``value``; only those that ``resets`` have a reset."""
        held = Signal(len(value), reset_less=not resets)
        with self._m.If(self._enable):
            self._m.d.sync += held.eq(value)
        return held

    def delay(self, value: Value, cycles: int, *, resets: bool = False) -> Value:
        """Return the last of ``cycles`` registers through which ``value`` passes."""
        for _ in range(cycles):
            value = self.hold(value, resets=resets)
        return value

    def hold_twice(self, value: Value, *, resets: bool = False) -> tuple[Value, Value]:
        """Return two registers of ``value``, each for half of what it moves.

        One of them holds its inverse, because synthesis merges equal registers.
        """
        inverse = Signal(len(value), init=-1 if resets else 0, reset_less=not resets)
        with self._m.If(self._enable):
            self._m.d.sync += inverse.eq(~value)
        return self.hold(value, resets=resets), ~inverse


class SkidBuffer(Circuit):
    """Two words between two blocks, which cut the paths of ``tready`` and of data, and lose no cycle.

    They are in LUT RAM, which takes a third of the registers' room.
    """

    def __init__(self, width: int) -> None:
        super().__init__(block_ports(width))

    def _describe(self, m: Module) -> None:
        """Describe the circuit: a word at the output, and one that came while the output was stalled."""
        come, go = self.s_axis, self.m_axis
        m.submodules.words = words = LutFIFO(width=len(flat(come)), depth=2)
        m.d.comb += [*enter(words, come), come.tready.eq(words.w_rdy), *leave(words, go)]


def stream(width: int) -> Any:
    """Return the signals of a stream."""
    return AxiStream(width).create()


def copy(to: Any, come: Any) -> Any:
    """Return the statement that gives ``to`` the words of ``come``."""
    return flat(to).eq(flat(come))


def flat(words: Any) -> Value:
    """Return all that a stream's word consists of."""
    return Cat(words.tdata, words.tkeep, words.tlast)


def forward(come: Any, go: Any) -> list[Any]:
    """Return the statements that pass the words of ``come`` to ``go`` as they are."""
    return [copy(go, come), go.tvalid.eq(come.tvalid), come.tready.eq(go.tready)]


def send(go: Any, data: Value, keep: Value, last: Value, valid: Value) -> list[Any]:
    """Return the statements that give ``go`` a word of these parts while ``valid`` is high."""
    return [go.tdata.eq(data), go.tkeep.eq(keep), go.tlast.eq(last), go.tvalid.eq(valid)]


def watch(ports: Any, come: Any, moves: Value) -> list[Any]:
    """Return the statements that show ``ports`` the words of ``come``, in the cycles of ``moves``."""
    return [
        ports.data.eq(come.tdata), ports.keep.eq(come.tkeep), ports.last.eq(come.tlast), ports.moves.eq(moves)
    ]  # fmt: skip


def enter(fifo: Any, come: Any) -> list[Any]:
    """Return the statements that put the words of ``come`` into a FIFO; ``tready`` is the caller's."""
    return [fifo.w_data.eq(flat(come)), fifo.w_en.eq(come.tvalid)]


def leave(fifo: Any, go: Any) -> list[Any]:
    """Return the statements that give ``go`` the words of a FIFO."""
    return [flat(go).eq(fifo.r_data), go.tvalid.eq(fifo.r_rdy), fifo.r_en.eq(go.tready)]


def registered(m: Module, come: Any, go: Any, may_go: Value | int = 1) -> None:
    """Give ``go`` the words of ``come`` behind a register, in cycles in which they ``may_go``.

    Behind a ``SkidBuffer``, which is LUT RAM, in front of a long first stage, whose ``tready`` must not wait
    for its ``tvalid``.
    """
    stage = Pipeline(m, go.tready)
    m.d.comb += [
        flat(go).eq(stage.hold(flat(come))),
        go.tvalid.eq(stage.hold(come.tvalid & may_go, resets=True)),
        come.tready.eq(go.tready & may_go),
    ]


def kept_word(m: Module, valid: Value, word: Value, ready: Value) -> tuple[Value, Value, Value]:
    """Return whether a word is there, that word, and whether the next one may come.

    For a ``ready`` that is known late: one register alone waits for it. A word is there in the cycle in which
    it comes. It is kept in case that it can't go on, and goes before the next one.
    """
    kept, is_kept, is_here = Signal(len(word), reset_less=True), Signal(), Signal()
    with m.If(~is_kept):
        m.d.sync += kept.eq(word)
    m.d.comb += is_here.eq(is_kept | valid)
    m.d.sync += is_kept.eq(is_here & ~ready)
    return is_here, Mux(is_kept, kept, word), ~is_kept


def shift_left_bytes(value: Value, count: Value, nbytes: int) -> Value:
    """Return ``value`` moved up by ``count`` bytes, and of that the low ``nbytes``."""
    return (value << Cat(0, 0, 0, count))[: 8 * nbytes]


def spread_left_bytes(m: Module, value: Value, counts: Sequence[Value], nbytes: int) -> Value:
    """Shift as ``shift_left_bytes``, by two copies of the count that move half of the bits of each byte.

    These are masks, because Yosys makes a choice between something and 0 in front of a register its reset,
    which then waits for the register's enable.
    """
    halves = []
    for half, count in enumerate(counts):
        moved = Cat(value.word_select(at, 4) for at in range(half, len(value) // 4, 2))
        for at, bit in enumerate(count):
            come, far = moved, Const(0, 4 << at)
            moved = Signal(len(come) + len(far))
            moves = Mux(bit, Const(-1, len(moved)), 0)
            m.d.comb += moved.eq((Cat(come, far) & ~moves) | (Cat(far, come) & moves))
        halves.append(moved)
    return Cat(moved.word_select(at, 4) for at in range(nbytes) for moved in halves)


def shift_right_bytes(value: Value, count: Value, nbytes: int, *, unit: int = 1) -> Value:
    """Return ``value`` moved down by ``count`` units of bytes, and of that the low ``nbytes``.

    It moves far first, because what is left to move then reaches fewer bytes; synthesis would do it last.
    """
    for bit in reversed(range(len(count))):
        step = unit << bit
        reach = 8 * (nbytes + step - unit)
        value = Mux(count[bit], value[8 * step :], value)[:reach]
    return value[: 8 * nbytes]


def first_bytes(count: Value, nbytes: int) -> Value:
    """Return a mask of ``nbytes`` bits with the low ``count`` of them set; 0 where ``count`` is 0."""
    return ~((2**nbytes - 1) << count)[:nbytes]


def clipped(value: Value, size: int) -> Value:
    """Return a number, at most ``size``, which is a power of two."""
    bits = size.bit_length() - 1
    return Mux(value[bits:].any(), size, value[:bits])


def count_kept(keep: Value) -> Value:
    """Return how many bytes a mask of 2^k bits keeps, whose ones come first.

    A bit of the count is odd or even as often as the ones reach a multiple of its weight.
    """
    bits = len(keep).bit_length()
    return Cat(keep[2**bit - 1 :: 2**bit].xor() for bit in range(bits))


def sum_of(values: Sequence[Value]) -> Value:
    """Return the sum of some values, as a tree of additions."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return sum_of(values[:half]) + sum_of(values[half:])


def leading_zeros(value: Value) -> Value:
    """Return the zeros above the highest one of 2^k bits; all but one of them if there is none."""
    return _zeros_and_emptiness(value)[0]


def _zeros_and_emptiness(value: Value) -> tuple[Value, Value]:
    """Return the leading zeros, and whether there is no one, from those of both halves at once."""
    size = len(value)
    if size == 1:
        return Value.cast(0)[:0], ~value
    low, low_is_empty = _zeros_and_emptiness(value[: size // 2])
    high, high_is_empty = _zeros_and_emptiness(value[size // 2 :])
    return Cat(Mux(high_is_empty, low, high), high_is_empty), low_is_empty & high_is_empty
