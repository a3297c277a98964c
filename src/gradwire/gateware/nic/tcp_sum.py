"""The sum of 16-bit words that TCP's checksum is made of, over a frame that passes."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from gradwire.gateware.nic.meter import METER, Window
from gradwire.gateware.nic.packets import ADDRESSES_AT, ETHERNET_NBYTES, IP_NBYTES, TCP, folded, swapped
from gradwire.gateware.stream import Pipeline


class TcpSum(wiring.Component):
    """A meter whose ``result`` is a packet's checksum if its own is 0, and 0 if that is there and right.

    Halves of 32 bits are added in the order of their bytes in memory, so that the result's low byte comes
    first. Stages: which bytes count; those; sums of four halves, twice; all words' sum; that folded twice.
    """

    RESULT_BITS = 16

    def __init__(self, width: int) -> None:
        super().__init__({**METER(width), "result": Out(self.RESULT_BITS)})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
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
        halves = [stage.hold(_sum(halves[at : at + 4])) for at in range(0, len(halves), 4)]
        marks, header = stage.hold(marks, resets=True), stage.hold(header)
        sums = [stage.hold(_sum(halves[at : at + 4])) for at in range(0, len(halves), 4)]
        marks, header = stage.hold(marks, resets=True), stage.hold(header)

        valid, is_first, is_last, is_whole = marks
        total = Signal(31, reset_less=True)
        with m.If(valid):
            m.d.sync += total.eq(Mux(is_first, header, total) + _sum(sums))
        done, is_whole = stage.hold(valid & is_last, resets=True), stage.hold(is_whole)
        once = stage.hold(folded(total))
        done, is_whole = stage.hold(done, resets=True), stage.hold(is_whole)
        m.d.comb += [
            self.result.eq(~stage.hold(folded(once)[:16])),
            self.done.eq(stage.hold(done, resets=True)),
            self.is_whole.eq(stage.hold(is_whole)),
        ]
        return m


def _sum(values: list[Value]) -> Value:
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return _sum(values[:half]) + _sum(values[half:])
