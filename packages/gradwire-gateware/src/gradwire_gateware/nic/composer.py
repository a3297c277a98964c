"""The output frames of a NIC: unchanged, or with new headers and payload."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from gradwire_gateware.nic.packets import ETHERNET_NBYTES, SUM_AT
from gradwire_gateware.packer import Packer
from gradwire_gateware.queues import Queue, open_memory
from gradwire_gateware.stream import (
    AxiStream,
    Circuit,
    Pipeline,
    SkidBuffer,
    block_ports,
    clipped,
    copy,
    count_kept,
    first_bytes,
    stream,
    watch,
)

EXTRA_NBYTES = 14
_LEAVING = 7
"""The depth in words of the memory after the packer."""
ORDER = {
    "is_composed": 1,  # otherwise unchanged
    "is_dropped": 1,
    "has_payload": 1,  # in the payload memory, used or not
    "headers": 7,  # bytes of the frame to keep
    "length": 16,  # of the IP packet
    "checksum": 16,  # of the IP header
    "extra": 8 * EXTRA_NBYTES,  # bytes after the headers
    "extra_count": 4,
    "size": 16,  # bytes of the payload after the extra bytes
    "tail": 24,  # bytes after the payload
    "tail_count": 2,
}


class Composer(Circuit):
    """A composer of a queued frame and its payload into one frame, as ``order`` says.

    ``order`` is read while ``told`` is high, and ``takes`` marks the cycle in which an order is complete. A
    composed frame has the headers, the extra bytes, the payload, and the tail, each in groups for the
    ``Packer``. Meanwhile, unused parts of the frame or the payload are drained from their memory, and the
    next frame that needs this memory waits.
    """

    def __init__(self, width: int, protocol: int) -> None:
        self._protocol = protocol
        super().__init__(
            {
                "frames": In(AxiStream(width)),
                "payloads": In(AxiStream(width)),
                "order": In(data.StructLayout(ORDER)),
                "told": In(1),
                "takes": Out(1),
                "m_axis": Out(AxiStream(width)),
            }
        )

    def follow(self, m: Module, frames: Any, payloads: Any, orders: Queue) -> None:
        """Connect this composer, in ``m``, to frames, payloads, and a queue of orders."""
        wiring.connect(m, frames, self.frames)
        wiring.connect(m, payloads, self.payloads)
        m.d.comb += [self.order.eq(orders.first), self.told.eq(orders.has), orders.takes.eq(self.takes)]

    def _describe(self, m: Module) -> None:
        """Describe the circuit: the selection of the next group, and two stages that mask its bytes."""
        frames, payloads, order = self.frames, self.payloads, self.order
        size = len(frames.tkeep)
        m.submodules.packer = packer = Packer(len(frames.tdata), size)
        out, has_room = open_memory(m, "leaving", packer.m_axis, _LEAVING)
        ready = packer.ready & has_room
        sheds, spills, within = Signal(), Signal(), Signal()
        left, sent_extra, sends_tail = Signal(16), Signal(), Signal()
        in_body = Signal()

        rest = Mux(within, left[: len(order.headers)], order.headers)  # few bits, for a short critical path
        may_begin = self.told & ~sheds & ~(spills & order.has_payload)
        drops = may_begin & order.is_dropped & ~within
        reads = ready & may_begin & ~order.is_dropped & ~in_body & frames.tvalid
        ends_headers = order.is_composed & (rest <= size)
        takes_body = ready & sent_extra & ~sends_tail & payloads.tvalid
        ends_body = takes_body & payloads.tlast
        extra = ready & in_body & ~sent_extra
        ends_raw = reads & ~order.is_composed & frames.tlast
        ends = ends_raw | (ends_body & (order.tail_count == 0)) | (ready & sends_tail)
        m.d.comb += [
            frames.tready.eq(sheds | reads),
            payloads.tready.eq(spills | takes_body),
            self.takes.eq(drops | ends),
        ]
        with m.If(sheds & frames.tvalid & frames.tlast):
            m.d.sync += sheds.eq(0)
        with m.If((drops | ends_raw) & order.has_payload):
            m.d.sync += spills.eq(1)
        with m.Elif(payloads.tvalid & payloads.tlast):
            m.d.sync += spills.eq(0)
        with m.If(drops):
            m.d.sync += sheds.eq(1)
        with m.If(ends_raw):
            m.d.sync += within.eq(0)
        with m.Elif(reads):
            m.d.sync += [within.eq(~ends_headers), left.eq(rest - size)]
        with m.If(reads & ends_headers):
            m.d.sync += [in_body.eq(1), sheds.eq(~frames.tlast)]
        with m.If(extra):
            m.d.sync += [sent_extra.eq(1), left.eq(order.size)]
        with m.If(takes_body):
            m.d.sync += [left.eq(left - size), sends_tail.eq(payloads.tlast & (order.tail_count != 0))]
        with m.If(ends & in_body):
            m.d.sync += [in_body.eq(0), sent_extra.eq(0), sends_tail.eq(0)]

        is_second = Signal()  # valid within a frame only; ``left`` would be too late in the cycle
        with m.If(reads):
            m.d.sync += is_second.eq(~within)
        header = self._patched(frames.tdata, order, within, is_second, size)
        plain = Mux(order.is_composed, header, frames.tdata)
        count = Mux(order.is_composed, clipped(rest, size), count_kept(frames.tkeep))
        stage = Pipeline(m, packer.ready)
        body = Mux(sends_tail, order.tail, Mux(sent_extra, payloads.tdata, order.extra))
        counts = Mux(sends_tail, order.tail_count, Mux(sent_extra, clipped(left, size), order.extra_count))
        group, counted = Mux(in_body, body, plain), Mux(in_body, counts, count)
        valid = stage.hold(reads | extra | takes_body | (ready & sends_tail), resets=True)
        group, counted, last = stage.hold(group), stage.hold(counted), stage.hold(ends)
        keep = Signal(size)
        m.d.comb += keep.eq(first_bytes(counted, size))
        kept = Cat(bit.replicate(8) for bit in keep)
        group, valid = stage.hold(group & kept), stage.hold(valid, resets=True)
        m.d.comb += packer.take(group, stage.hold(counted), stage.hold(last), valid)
        wiring.connect(m, out, wiring.flipped(self.m_axis))

    def _patched(self, word: Value, order: Any, within: Value, is_second: Value, size: int) -> Value:
        """Return a header word with the new length, protocol, and IP checksum, and 0 as TCP's checksum."""
        changes: dict[int, Any] = {
            ETHERNET_NBYTES + 2: order.length[8:],
            ETHERNET_NBYTES + 3: order.length[:8],
            ETHERNET_NBYTES + 9: self._protocol,
            ETHERNET_NBYTES + 10: order.checksum[:8],
            ETHERNET_NBYTES + 11: order.checksum[8:],
            SUM_AT: 0,
            SUM_AT + 1: 0,
        }
        bytes_of = []
        for at in range(size):
            byte = word.word_select(at, 8)
            if at in changes:
                byte = Mux(~within, changes[at], byte)
            if at + size in changes:
                byte = Mux(within & is_second, changes[at + size], byte)
            bytes_of.append(byte)
        return Cat(bytes_of)


# The checksum of a composed frame, inserted after the whole frame has been read.

FACTS = {"is_composed": 1, "headers": 7, "end": 16, "place": 7}
"""The fields that are known at a frame's beginning. ``place`` is the checksum's offset in 16-bit units."""


class Finisher(Circuit):
    """A block that writes a meter's result into composed frames at ``place``.

    Other frames pass unchanged. ``facts`` is read while ``told`` is high, and must be stable until
    ``takes_last``. A composed frame waits in a memory until the meter has read its end. The result's low half
    is written first.
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
        index = Signal(range(5))  # the last index is beyond every checksum
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
    """Return a word with those halves of the result whose offsets are in the word."""
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
    """A filter that passes a packet's first ``most`` words and its last word.

    ``size`` is valid with ``done``. Without the filter, a damaged packet might decompress to many times its
    size.
    """

    def __init__(self, width: int, most: int) -> None:
        self._most = most
        super().__init__({**block_ports(width), "size": Out(20), "done": Out(1)})

    def _describe(self, m: Module) -> None:
        """Describe the circuit. ``size`` counts all words, including the words that the filter drops."""
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
