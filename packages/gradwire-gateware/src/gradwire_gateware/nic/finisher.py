"""The checksum of a composed frame, inserted after the whole frame has been read."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from gradwire_gateware.queues import Queue, open_memory
from gradwire_gateware.stream import (
    Circuit,
    Pipeline,
    SkidBuffer,
    block_ports,
    copy,
    count_kept,
    stream,
    watch,
)

FACTS = {"is_composed": 1, "headers": 7, "end": 16, "place": 7}
"""The fields known at a frame's beginning; ``place`` is the checksum's offset in 16-bit units."""


class Finisher(Circuit):
    """A block that writes a meter's result into composed frames at ``place``; other frames pass unchanged.

    ``facts`` is read while ``told`` is high, and must be stable until ``takes_last``. A composed frame waits
    in a memory until the meter has read its end. The result's low half is written first.
    """

    def __init__(self, width: int, meter: Any, depth: int) -> None:
        self._meter, self._depth = meter, depth
        super().__init__(
            {**block_ports(width), "facts": In(data.StructLayout(FACTS)), "told": In(1), "takes_last": Out(1)}
        )

    def follow(self, m: Module, frames: Any, exits: Queue) -> None:
        """Connect this block, in ``m``, to frames and a queue of their facts."""
        wiring.connect(m, frames, self.s_axis)
        m.d.comb += [self.facts.eq(exits.first), self.told.eq(exits.has), exits.takes.eq(self.takes_last)]

    def _describe(self, m: Module) -> None:
        come, facts, meter = self.s_axis, self.facts, self._meter
        width = len(come.tdata)
        m.submodules.meter = meter
        kinds = Queue(m, "kinds", {"is_composed": 1, "place": 7})
        results = Queue(m, "results", {"result": meter.RESULT_BITS})
        entering = stream(width)
        waiting, has_room = open_memory(m, "waiting", entering, self._depth)

        may_enter = self.told & kinds.has_room & results.has_room & has_room
        moves = come.tvalid & come.tready
        within = Signal()
        m.d.comb += [
            copy(entering, come),
            entering.tvalid.eq(come.tvalid & may_enter),
            come.tready.eq(may_enter),
            self.takes_last.eq(moves & come.tlast),
            *watch(meter, come, moves & facts.is_composed),
            meter.end.eq(facts.end),
            meter.headers.eq(facts.headers),
        ]
        with m.If(moves):
            m.d.sync += within.eq(~come.tlast)
        # A register stage, because ``moves`` is known late in a cycle.
        stage = Pipeline(m, Const(1))
        begins = stage.hold(moves & ~within, resets=True)
        is_composed, place = stage.hold(facts.is_composed), stage.hold(facts.place)
        kinds.put(begins, is_composed=is_composed, place=place)
        results.put(meter.done, result=meter.result)

        m.submodules.leaving = leaving = SkidBuffer(width)
        go = leaving.s_axis
        may_leave = kinds.has & (~kinds.first.is_composed | results.has)
        leaves = waiting.tvalid & go.tready & may_leave
        index = Signal(range(5))  # the last one is beyond every checksum
        with m.If(leaves):
            m.d.sync += index.eq(Mux(waiting.tlast, 0, Mux(index == 4, 4, index + 1)))
        m.d.comb += [
            go.tdata.eq(_patched(waiting.tdata, kinds.first, results.first.result, index)),
            Cat(go.tkeep, go.tlast).eq(Cat(waiting.tkeep, waiting.tlast)),
            go.tvalid.eq(waiting.tvalid & may_leave),
            waiting.tready.eq(go.tready & may_leave),
            kinds.takes.eq(leaves & waiting.tlast),
            results.takes.eq(leaves & waiting.tlast & kinds.first.is_composed),
        ]
        wiring.connect(m, leaving.m_axis, wiring.flipped(self.m_axis))


def _patched(word: Value, kind: Any, result: Value, index: Value) -> Value:
    """Return a word with the halves of the result whose offsets are in it."""
    lanes = len(word) // 16
    bits = lanes.bit_length() - 1
    places = [(kind.place + part)[:7] for part in range(len(result) // 16)]
    halves = [word.word_select(lane, 16) for lane in range(lanes)]
    for part, place in enumerate(places):
        is_here = kind.is_composed & (place[bits:] == index)
        halves = [
            Mux(is_here & (place[:bits] == lane), result.word_select(part, 16), half)
            for lane, half in enumerate(halves)
        ]
    return Cat(halves)


# A packet's size, and at most as many of its words as a memory holds.


class Bounded(Circuit):
    """A filter that passes a packet's first ``most`` words and its last one; ``size`` is valid with ``done``.

    It is needed because a damaged packet may decompress to many times its size.
    """

    def __init__(self, width: int, most: int) -> None:
        self._most = most
        super().__init__({**block_ports(width), "size": Out(20), "done": Out(1)})

    def _describe(self, m: Module) -> None:
        """Describe the circuit: ``size`` counts all words, including the words that it drops."""
        come, out = self.s_axis, self.m_axis
        step = len(come.tkeep)
        index, before = Signal(range(self._most + 1)), Signal(len(self.size))
        passes = (index != self._most) | come.tlast
        moves = come.tvalid & come.tready
        m.d.comb += [
            copy(out, come),
            out.tvalid.eq(come.tvalid & passes),
            come.tready.eq(out.tready | ~passes),
        ]
        count = Signal(range(step + 1), reset_less=True)
        total, ends = Signal(len(self.size), reset_less=True), Signal()
        m.d.sync += [count.eq(count_kept(come.tkeep)), total.eq(before), ends.eq(moves & come.tlast)]
        with m.If(moves):
            m.d.sync += [
                index.eq(Mux(come.tlast, 0, Mux(index == self._most, index, index + 1))),
                before.eq(Mux(come.tlast, 0, before + step)),
            ]
        m.d.sync += [self.size.eq(total + count), self.done.eq(ends)]
