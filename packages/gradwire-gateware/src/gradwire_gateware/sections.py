"""Payloads of several sections, which are joined after a compressor and split before a decompressor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from gradwire_gateware.packer import Packer
from gradwire_gateware.queues import Queue, open_memory
from gradwire_gateware.stream import (
    Circuit,
    Pipeline,
    block_ports,
    clipped,
    copy,
    count_kept,
    first_bytes,
    send,
)

_GROUPS_ON_THEIR_WAY = 16
"""The largest number of words in the stages of a compressor and its packers."""


def store(
    m: Module, packers: Sequence[Packer], words: Sequence[int], more: int = 0
) -> tuple[list[Any], Value]:
    """Return the packers' streams, from memories for two chunks, and whether all memories have room.

    The source must start no group without room, but groups from ``more`` extra stages may still arrive.
    """
    streams, rooms, coming = [], [], _GROUPS_ON_THEIR_WAY + more
    for at, (packer, most) in enumerate(zip(packers, words, strict=True)):
        depth = max(2 * most + 1, most + 2 * coming)  # plus one word after the block RAM
        stream, has_room = open_memory(m, f"wait{at}", packer.m_axis, depth - coming, coming, is_far=True)
        streams.append(stream)
        rooms.append(has_room)
    return streams, Cat(rooms).all()


def join(m: Module, sections: Sequence[Any], out: Any) -> None:
    """Join one packet from each stream into a single packet without gaps."""
    width = len(out.tdata)
    m.submodules.packer = packer = Packer(width, width // 8, come_far=True)
    stage = Pipeline(m, packer.ready)
    turn = Signal(range(len(sections)))

    def current(name: str) -> Value:
        *others, last = (getattr(section, name) for section in sections)
        return reduce(lambda rest, each: Mux(turn == each[0], each[1], rest), enumerate(others), last)

    moves = packer.ready & current("tvalid")
    ends, is_final = current("tlast"), turn == len(sections) - 1
    m.d.comb += [section.tready.eq(packer.ready & (turn == at)) for at, section in enumerate(sections)]
    with m.If(moves & ends):
        m.d.sync += turn.eq(Mux(is_final, 0, turn + 1))
    data, count = stage.delay(current("tdata"), 2), stage.hold(count_kept(stage.hold(current("tkeep"))))
    m.d.comb += packer.take(data, count, stage.delay(is_final & ends, 2), stage.delay(moves, 2, resets=True))
    wiring.connect(m, packer.m_axis, wiring.flipped(out))


def cut(m: Module, come: Any, is_known: Value, sections: Sequence[tuple[Value, int, int]]) -> list[Any]:
    """Split a packet into sections, and return their streams.

    Each section is a size, a largest size, and a memory depth in words. Words wait until ``is_known`` marks
    the sizes as valid, and for room. After a packet, one cycle has no word, because a section's remainder may
    have to leave. So only registers decide whether a word enters, wherever the sections are on the chip.
    """
    skip: Value = Const(0)
    most_skipped = 0
    trims, streams, rooms = [], [], []
    for at, (nbytes, most, depth) in enumerate(sections):
        m.submodules[f"section{at}"] = trim = Trim(len(come.tdata), most_skipped, most)
        m.d.comb += [trim.skip.eq(skip), trim.nbytes.eq(nbytes), trim.told.eq(is_known), trim.wanted.eq(1)]
        skip, most_skipped = skip + nbytes, most_skipped + most
        stream, has_room = open_memory(m, f"section{at}_waits", trim.m_axis, depth)
        trims.append(trim)
        streams.append(stream)
        rooms.append(has_room)
    has_room, rests = Signal(init=1), Signal()
    ready = is_known & has_room & ~rests
    m.d.comb += come.tready.eq(ready)
    m.d.sync += [has_room.eq(Cat(rooms).all()), rests.eq(come.tvalid & ready & come.tlast)]
    for trim in trims:
        m.d.comb += [copy(trim.s_axis, come), trim.s_axis.tvalid.eq(come.tvalid & ready)]
    return streams


class Countdown:
    """A counter over the words of packets whose numbers of values are in ``counts``.

    While ``has`` is high, ``is_last`` marks the last word of its packet, and ``kept`` is the mask of the
    word's values. ``moves`` advances to the next word, only while ``has`` is high. ``has`` and ``is_last``
    are registers.
    """

    def __init__(self, m: Module, counts: Queue, lanes: int, moves: Value) -> None:
        values = counts.first.values
        self.has, self.is_last = Signal(), Signal()
        self.kept, left = Signal(lanes), Signal(len(values), reset_less=True)
        m.d.comb += [
            self.kept.eq(first_bytes(clipped(left, lanes), lanes)),
            counts.takes.eq(~self.has | (moves & self.is_last)),
        ]
        with m.If(counts.takes):
            m.d.sync += [self.has.eq(counts.has), left.eq(values), self.is_last.eq(values <= lanes)]
        with m.Elif(moves):
            m.d.sync += [left.eq(left - lanes), self.is_last.eq(left <= 2 * lanes)]


# A byte range of a packet, aligned to the beginning of a word.


class Trim(Circuit):
    """A block that cuts packets to ``nbytes`` bytes from byte ``skip`` on, or drops them.

    Packets that aren't ``wanted`` are dropped. A packet's words wait until ``told`` is high. The three inputs
    must then be stable until ``takes_last``, the cycle of the last word. Every wanted packet gives one
    packet, shorter if the input ends early. Two stages rotate a word by ``skip`` modulo the word's size, and
    a third stage merges the rest of the previous word with the beginning of the current word. After the last
    word, a remainder may take one more cycle.
    """

    def __init__(self, width: int, most_skipped: int, most: int = 2**16 - 1) -> None:
        super().__init__(
            {
                **block_ports(width),
                "told": In(1),
                "wanted": In(1),
                "skip": In(range(most_skipped + 1)),
                "nbytes": In(range(most + 1)),
                "takes_last": Out(1),
            }
        )

    def _describe(self, m: Module) -> None:
        come, out = self.s_axis, self.m_axis
        size = len(come.tkeep)
        ready, flushes, takes = Signal(), Signal(), Signal()
        m.d.comb += [
            ready.eq(~out.tvalid | out.tready),
            come.tready.eq(ready & self.told & ~flushes),
            takes.eq(come.tready & come.tvalid),
            self.takes_last.eq(takes & come.tlast),
        ]
        within, ended = Signal(), Signal()
        goes_on = Signal()  # within | flushes as one register, because all bytes of a word depend on it
        shift_bits = size.bit_length() - 1
        skipped = Cat(self.skip, Const(0, shift_bits))
        drop, shift = Signal(len(self.skip)), Signal(shift_bits)
        left = Signal(len(self.nbytes))
        emits = flushes | (takes & within & ~ended & (drop == 0))
        closes = flushes | (left <= size)
        with m.If(takes & ~within):
            m.d.sync += [
                drop.eq(self.skip >> shift_bits),
                shift.eq(skipped[:shift_bits]),
                left.eq(self.nbytes),
                ended.eq(~self.wanted),
            ]
        with m.Elif(takes | (flushes & ready)):
            with m.If(drop != 0):
                m.d.sync += drop.eq(drop - 1)
            with m.Elif(~ended):
                m.d.sync += [left.eq(left - size), ended.eq(closes)]
        with m.If(takes):
            has_more = Mux(within, ~ended & ~((drop == 0) & closes), self.wanted)
            m.d.sync += [within.eq(~come.tlast), flushes.eq(come.tlast & has_more)]
            m.d.sync += goes_on.eq(~come.tlast | has_more)
        with m.Elif(ready):
            m.d.sync += [flushes.eq(0), goes_on.eq(within)]

        stage = Pipeline(m, ready)
        rotation = Mux(goes_on, shift, skipped[:shift_bits])
        steps, emits, closes = stage.hold(takes | flushes, resets=True), stage.hold(emits), stage.hold(closes)
        count = stage.hold(Mux(drop == 0, clipped(left, size), 0))
        coarse = Cat(Const(0, 2), rotation[2:])
        word = stage.hold(_rotated(come.tdata, coarse))
        rotation = stage.hold(rotation)

        word = stage.hold(_rotated(word, rotation[:2]))
        low = stage.hold(Const(2**size - 1, size) >> rotation)
        keep = stage.hold(first_bytes(count, size))
        steps, emits, closes = stage.hold(steps, resets=True), stage.hold(emits), stage.hold(closes)

        before = Signal.like(word, reset_less=True)
        with m.If(ready & steps):
            m.d.sync += before.eq(word)
        bits = Cat(bit.replicate(8) for bit in low)
        data, valid = stage.hold((before & bits) | (word & ~bits)), stage.hold(steps & emits, resets=True)
        m.d.comb += send(out, data, stage.hold(keep), stage.hold(closes), valid)


def _rotated(word: Value, count: Value) -> Value:
    """Return a word rotated right by ``count`` bytes."""
    return (Cat(word, word) >> Cat(Const(0, 3), count))[: len(word)]
