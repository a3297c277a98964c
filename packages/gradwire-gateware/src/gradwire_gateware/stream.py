"""AXI streams, and the registers between their producers and consumers.

A word is ``width`` bits; byte 0 is in bits 7..0. A word is transferred in a cycle in which ``tvalid`` and
``tready`` are both high. Once ``tvalid`` is high, the word stays until it is transferred. ``tlast`` marks the
last word of a packet. Only that word may be partial, and then its kept bytes are the lowest bytes. An empty
packet is one last word without kept bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

COARSE = 4
"""The byte granularity of the first of two shifts of bytes; the second shift is by the remainder."""


class Circuit(wiring.Component):
    """The base class of this package's components. A subclass describes its circuit in ``_describe``."""

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the module with the circuit, which is the same on all platforms."""
        m = Module()
        self._describe(m)
        return m

    def _describe(self, m: Module) -> None:
        raise NotImplementedError


# A queue in LUT RAM that writes its next entry in every cycle.

_PLACES = 16
"""The smallest number of words of a LUT RAM. Fewer words use the same area."""


class LutFIFO(SyncFIFO):
    """A ``SyncFIFO`` that writes unconditionally, because a wide LUT RAM is spread over the chip.

    A valid word with room advances only the write address, which is near its producer. Until a word is
    accepted, the next entry is written in every cycle. That entry is free as long as the memory has more
    entries than ``depth``, that is, unless ``depth`` is a power of two of 16 or more.
    """

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the module. The memory's size is a power of two, so that addresses wrap."""
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
    """The signature of a stream, in the direction of its producer."""

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
    """Return the ports of a block that reads one stream and writes another stream."""
    return {"s_axis": In(AxiStream(width)), "m_axis": Out(AxiStream(width))}


class Pipeline:
    """A factory of registers that all load in the cycles in which ``enable`` is high."""

    def __init__(self, m: Module, enable: Value) -> None:
        self._m = m
        self._enable = enable

    def hold(self, value: Value, *, resets: bool = False) -> Signal:
        """Return a register that loads ``value``, with a reset if ``resets``."""
        held = Signal(len(value), reset_less=not resets)
        with self._m.If(self._enable):
            self._m.d.sync += held.eq(value)
        return held

    def hold_all(self, *values: Value) -> tuple[Signal, ...]:
        """Return a register for each of the values."""
        return tuple(self.hold(value) for value in values)

    def delay(self, value: Value, cycles: int, *, resets: bool = False) -> Value:
        """Return ``value`` delayed by ``cycles`` registers."""
        for _ in range(cycles):
            value = self.hold(value, resets=resets)
        return value

    def hold_twice(self, value: Value, *, resets: bool = False) -> tuple[Value, Value]:
        """Return two copies of a register, one kept inverted, because synthesis merges equal registers."""
        inverse = Signal(len(value), init=-1 if resets else 0, reset_less=not resets)
        with self._m.If(self._enable):
            self._m.d.sync += inverse.eq(~value)
        return self.hold(value, resets=resets), ~inverse


class SkidBuffer(Circuit):
    """A two-word buffer that cuts the combinational paths of ``tready`` and data at full throughput.

    The buffer uses LUT RAM, which needs a third of the area of registers.
    """

    def __init__(self, width: int) -> None:
        super().__init__(block_ports(width))

    def _describe(self, m: Module) -> None:
        """Describe the circuit: a word at the output, and a word that arrived while the output stalled."""
        come, go = self.s_axis, self.m_axis
        m.submodules.words = words = LutFIFO(width=len(flat(come)), depth=2)
        m.d.comb += [*enter(words, come), come.tready.eq(words.w_rdy), *leave(words, go)]


def stream(width: int) -> Any:
    """Return the signals of a stream."""
    return AxiStream(width).create()


def copy(to: Any, come: Any) -> Any:
    """Return the statement that connects the data, keep, and last signals of ``come`` to ``to``."""
    return flat(to).eq(flat(come))


def flat(words: Any) -> Value:
    """Return the data, keep, and last signals of a stream as one value."""
    return Cat(words.tdata, words.tkeep, words.tlast)


def forward(come: Any, go: Any) -> list[Any]:
    """Return the statements that connect ``come`` to ``go`` unchanged."""
    return [copy(go, come), go.tvalid.eq(come.tvalid), come.tready.eq(go.tready)]


def send(go: Any, data: Value, keep: Value, last: Value, valid: Value) -> list[Any]:
    """Return the statements that drive ``go`` with a word of these parts, valid while ``valid`` is high."""
    return [go.tdata.eq(data), go.tkeep.eq(keep), go.tlast.eq(last), go.tvalid.eq(valid)]


def watch(ports: Any, come: Any, moves: Value) -> list[Any]:
    """Return the statements that drive ``ports`` with the words of ``come``, marked by ``moves``."""
    return [
        ports.data.eq(come.tdata), ports.keep.eq(come.tkeep), ports.last.eq(come.tlast), ports.moves.eq(moves)
    ]  # fmt: skip


def enter(fifo: Any, come: Any) -> list[Any]:
    """Return the statements that write ``come`` to a FIFO. The caller drives ``tready``."""
    return [fifo.w_data.eq(flat(come)), fifo.w_en.eq(come.tvalid)]


def leave(fifo: Any, go: Any) -> list[Any]:
    """Return the statements that read a FIFO into ``go``."""
    return [flat(go).eq(fifo.r_data), go.tvalid.eq(fifo.r_rdy), fifo.r_en.eq(go.tready)]


def registered(m: Module, come: Any, go: Any, may_go: Value | int = 1) -> None:
    """Connect ``come`` to ``go`` through a register, in cycles in which ``may_go`` is high.

    It separates LUT RAM from a long first stage, whose ``tready`` must not depend on its ``tvalid``.
    """
    stage = Pipeline(m, go.tready)
    m.d.comb += [
        flat(go).eq(stage.hold(flat(come))),
        go.tvalid.eq(stage.hold(come.tvalid & may_go, resets=True)),
        come.tready.eq(go.tready & may_go),
    ]


def kept_word(m: Module, valid: Value, word: Value, ready: Value) -> tuple[Value, Value, Value]:
    """Return whether a word is available, the word, and whether the next word may arrive.

    Use the function if ``ready`` is known late in a cycle, because only one register depends on ``ready``. A
    word is available in the cycle in which it arrives. A word that can't leave is stored, and leaves before
    the next word.
    """
    kept, is_kept, is_here = Signal(len(word), reset_less=True), Signal(), Signal()
    with m.If(~is_kept):
        m.d.sync += kept.eq(word)
    m.d.comb += is_here.eq(is_kept | valid)
    m.d.sync += is_kept.eq(is_here & ~ready)
    return is_here, Mux(is_kept, kept, word), ~is_kept


def shift_left_bytes(value: Value, count: Value, nbytes: int) -> Value:
    """Return the low ``nbytes`` of ``value`` shifted left by ``count`` bytes."""
    return (value << Cat(0, 0, 0, count))[: 8 * nbytes]


def spread_left_bytes(m: Module, value: Value, counts: Sequence[Value], nbytes: int) -> Value:
    """Shift as ``shift_left_bytes`` does, with one copy of the count for each half of every byte's bits.

    Masks replace multiplexers with 0, which Yosys would turn into register resets that need the enable.
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
    """Return the low ``nbytes`` of ``value`` shifted right by ``count`` times ``unit`` bytes.

    The largest shift is first, so that later stages have fewer bytes; synthesis would do the opposite.
    """
    for bit in reversed(range(len(count))):
        step = unit << bit
        reach = 8 * (nbytes + step - unit)
        value = Mux(count[bit], value[8 * step :], value)[:reach]
    return value[: 8 * nbytes]


def first_bytes(count: Value, nbytes: int) -> Value:
    """Return a mask of ``nbytes`` bits with the low ``count`` bits set."""
    return ~((2**nbytes - 1) << count)[:nbytes]


def clipped(value: Value, size: int) -> Value:
    """Return the minimum of ``value`` and ``size``, a power of two."""
    bits = size.bit_length() - 1
    return Mux(value[bits:].any(), size, value[:bits])


def count_kept(keep: Value) -> Value:
    """Return the number of set bits, the lowest, in a mask of 2^k bits.

    Bit i is the parity of the number of set bits at multiples of 2^i, counted from 1.
    """
    bits = len(keep).bit_length()
    return Cat(keep[2**bit - 1 :: 2**bit].xor() for bit in range(bits))


def sum_of(values: Sequence[Value]) -> Value:
    """Return the sum of ``values``, as a tree of additions."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return sum_of(values[:half]) + sum_of(values[half:])


def leading_zeros(value: Value) -> Value:
    """Return the number of zeros above the highest set bit of 2^k bits.

    The number is 2^k - 1 if all bits are 0.
    """
    return _zeros_and_emptiness(value)[0]


def _zeros_and_emptiness(value: Value) -> tuple[Value, Value]:
    """Return the number of leading zeros, and whether all bits are zero.

    Both halves are examined in parallel.
    """
    size = len(value)
    if size == 1:
        return Value.cast(0)[:0], ~value
    low, low_is_empty = _zeros_and_emptiness(value[: size // 2])
    high, high_is_empty = _zeros_and_emptiness(value[size // 2 :])
    return Cat(Mux(high_is_empty, low, high), high_is_empty), low_is_empty & high_is_empty
