"""What meters have in common: they watch a frame that passes and give one result at the end of its packet."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib.wiring import In, Out

from gradwire.gateware.nic.packets import clipped
from gradwire.gateware.stream import Pipeline, first_bytes


def METER(width: int) -> dict[str, Any]:  # noqa: N802 - ports that are the same for all
    """Return the ports of a meter besides its result.

    A word is watched in a cycle in which ``moves`` is high. ``end`` and ``headers`` are the bytes of the
    frame up to the end of its packet and of its headers, constant while it passes; what follows the packet
    doesn't count. ``done`` is high for one cycle, in which the result is there. It ``is_whole`` unless the
    frame has ended before its packet.
    """
    return {
        "data": In(width),
        "keep": In(width // 8),
        "last": In(1),
        "moves": In(1),
        "end": In(16),
        "headers": In(7),
        "done": Out(1),
        "is_whole": Out(1),
    }


class Window:
    """The first stage of a meter: a word, which of its bytes the packet has, and where in it they are."""

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
            m.d.sync += [
                within.eq(~ports.last),
                left.eq(rest - size),
                is_over.eq((within & is_over) | ends),
            ]
        self.within = within
        self.data = stage.hold(ports.data)
        self.count = stage.hold(clipped(rest, size))
        self.counted = Signal(size)
        m.d.comb += self.counted.eq(first_bytes(self.count, size))
        keep, ends, self.is_first = stage.hold(ports.keep), stage.hold(ends), stage.hold(~within)
        is_whole = ends & ~(self.counted & ~keep).any()
        last = stage.hold(ports.last | (rest <= size))
        self.marks = Cat(stage.hold(valid, resets=True), self.is_first, last, is_whole)
