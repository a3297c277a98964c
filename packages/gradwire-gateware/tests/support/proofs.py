"""Proofs about circuits: a SAT solver looks for inputs that make the output ``holds`` 0."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.back import rtlil
from amaranth.hdl import Elaboratable

from gradwire_gateware.stream import Pipeline
from support.programs import program
from support.quick_amaranth import shared_values

LIMIT_S = 1700


class Wires(Pipeline):
    """A ``Pipeline`` of wires, so that one step of a proof sees through all stages."""

    def __init__(self, m: Module) -> None:
        super().__init__(m, Const(1))

    def hold(self, value: Value, *, resets: bool = False) -> Signal:  # noqa: ARG002 - a pipeline's
        wire = Signal(len(value))
        self._m.d.comb += wire.eq(value)
        return wire


class Claim(Elaboratable):  # type: ignore[misc]
    """A circuit with ports, whose output ``holds`` is to be 1 in every cycle."""

    def __init__(self) -> None:
        self.holds = Signal(init=1)
        self.ports: list[Signal] = [self.holds]

    def given(self, name: str, bits: int) -> Signal:
        """Return an input, free in every cycle."""
        signal = Signal(bits, name=name)
        self.ports.append(signal)
        return signal


def counterexample(claim: Claim, folder: Path, steps: int = 0) -> str | None:
    """Return the inputs that refute a claim, as the solver shows them; None if it is proved.

    With ``steps``, for so many cycles after the start, whatever comes in; without, for a circuit that has no
    registers.
    """
    with shared_values():
        text = rtlil.convert(claim, name="claim", ports=claim.ports, emit_src=False)
    (folder / "claim.il").write_text(text, encoding="utf-8")
    how = f"-seq {steps} -set rst 0" if steps else ""
    logic = "prep -top claim -flatten; memory_map; opt -fast"
    script = f"read_rtlil claim.il; {logic}; sat -prove holds 1 {how} -show-inputs"
    done = subprocess.run(
        [program("yosys"), "-p", script],
        cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    if "no model found: SUCCESS" in done.stdout:
        return None
    assert "model found: FAIL" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout[done.stdout.index("FAIL") :][:4000]


class Marked:
    """A byte of some packet, chosen freely, and the length of its packet; ``packet`` counts packets."""

    def __init__(self, m: Module, packet_bits: int = 4, place_bits: int = 8) -> None:
        self._m = m
        self.chosen, self.ended = Signal(), Signal()
        self.packet = Signal(packet_bits)
        self.place = Signal(place_bits)
        self.byte = Signal(8)
        self.nbytes = Signal(place_bits)
        self._now = Signal(packet_bits)
        self._before = Signal(place_bits)

    def choose(
        self, moves: Value, chooses: Value, data: Value, index: Value, count: Value, last: Value
    ) -> None:
        """Watch the input: ``count`` bytes of ``data`` move, and ``chooses`` takes that at ``index``."""
        m = self._m
        chosen = moves & chooses & ~self.chosen & (index < count)
        with m.If(chosen):
            m.d.sync += [
                self.chosen.eq(1),
                self.packet.eq(self._now),
                self.place.eq(self._before + index),
                self.byte.eq(data.word_select(index, 8)),
            ]
        with m.If(moves):
            m.d.sync += [self._now.eq(self._now + last), self._before.eq(Mux(last, 0, self._before + count))]
        with m.If(moves & last & (chosen | (self.chosen & (self.packet == self._now)))):
            m.d.sync += [self.ended.eq(1), self.nbytes.eq(self._before + count)]

    @property
    def packets(self) -> Value:
        """How many packets have gone in."""
        return self._now


def kept(count: Value, last: Value, size: int) -> tuple[Value, Value]:
    """Return how many bytes a word keeps, ``count`` in a packet's last and all in others, and the mask."""
    some = Mux(last & (count < size), count, size)
    return some, Cat(some > at for at in range(size))


def scaled(wires: Wires, x: Value, low: Value | int, bits: int) -> tuple[Value, Value]:
    """Return a float32's magnitude in units of 2^(low - 150 - bits), rounded down, and if that lost some.

    ``low`` is at least the exponent of ``x``, so that ``bits`` are below the lowest of its significand.
    """
    is_normal = x[23:31] != 0
    exponent = Mux(is_normal, x[23:31], 1)
    whole = Cat(Const(0, bits), x[:23], is_normal)
    distance = wires.hold((low - exponent)[:8])
    shifted = wires.hold(whole >> distance)
    return shifted, (shifted << distance)[: len(whole)] != whole


class Watched:
    """The stream that leaves a block, against a ``Marked`` byte of what went in."""

    def __init__(self, m: Module, marked: Marked, stream: Any) -> None:
        """Count the packets and bytes of a stream in ``AxiStream``."""
        self._marked, self._stream = marked, stream
        self._size = len(stream.tkeep)
        self._packet, self._before = Signal.like(marked.packet), Signal.like(marked.place)
        self._stalled, self._word = Signal(), Signal(9 * self._size + 1)
        self._idle = Signal(range(32))
        self._pending = marked.packets != self._packet
        moves = stream.tvalid & stream.tready
        word = Cat(stream.tdata, stream.tkeep, stream.tlast)
        m.d.sync += [
            self._stalled.eq(stream.tvalid & ~stream.tready),
            self._word.eq(word),
            self._idle.eq(Mux(self._pending & stream.tready & ~moves, self._idle + (self._idle != 31), 0)),
        ]
        self.moves, self._same = moves, word == self._word
        with m.If(moves):
            m.d.sync += [
                self._packet.eq(self._packet + stream.tlast),
                self._before.eq(Mux(stream.tlast, 0, self._before + self._count())),
            ]

    def holds(self, latency: int) -> Value:
        """Return whether words stay while they wait, come in time, and have the marked byte in its place."""
        stream, marked = self._stream, self._marked
        keep = stream.tkeep
        is_first_kept = (keep & (keep + 1)) == 0
        is_full = keep == 2**self._size - 1
        here = marked.chosen & (self._packet == marked.packet)
        offset = (marked.place - self._before)[: len(marked.place)]
        is_here = here & (marked.place >= self._before) & (offset < self._size)
        byte = stream.tdata.word_select(offset[: self._size.bit_length()], 8)
        is_right = keep.bit_select(offset[: self._size.bit_length()], 1) & (byte == marked.byte)
        ends = marked.ended & (self._before + self._count() == marked.nbytes)
        on_leaving = (
            is_first_kept & (stream.tlast | is_full) & (~is_here | is_right) & (~(here & stream.tlast) | ends)
        )
        stays = ~self._stalled | (stream.tvalid & self._same)
        comes = self._idle < latency
        return stays & comes & (~self.moves | on_leaving)

    def _count(self) -> Value:
        return sum((bit for bit in self._stream.tkeep), Const(0, 1))


class WatchedPieces:
    """The pieces of packets that a block shows in a window, against a ``Marked`` byte of what went in."""

    def __init__(self, m: Module, marked: Marked, block: Any) -> None:
        """Watch a block with the outputs ``valid``, ``last``, and ``window``, and the input ``ready``."""
        self._m, self._marked, self._block = m, marked, block
        self._packet, self._idle = Signal.like(marked.packet), Signal(range(32))
        self.before = Signal.like(marked.place)
        self.fires = block.valid & block.ready
        self.here = marked.chosen & (self._packet == marked.packet)
        pending = (marked.packets != self._packet) & block.ready & ~self.fires
        m.d.sync += self._idle.eq(Mux(pending, self._idle + (self._idle != 31), 0))

    def takes(self, nbytes: Value) -> None:
        """Count what an output takes of its packet."""
        with self._m.If(self.fires):
            self._m.d.sync += [
                self._packet.eq(self._packet + self._block.last),
                self.before.eq(Mux(self._block.last, 0, self.before + nbytes)),
            ]

    def shows(self, start: Value, before: Value, length: Value) -> Value:
        """Return whether the marked byte, if it is in this piece, stands where the piece says."""
        offset = (self._marked.place - before)[: len(self._marked.place)]
        byte = self._block.window.word_select((start + offset)[:5], 8)
        return ~(self.here & (offset < length)) | (byte == self._marked.byte)

    def comes(self, latency: int) -> Value:
        """Return whether outputs follow in time while there are packets, and ``ready``."""
        return self._idle < latency
