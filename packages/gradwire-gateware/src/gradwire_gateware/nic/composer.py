"""The output frames of a NIC: unchanged, or with new headers and payload."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from gradwire_gateware.nic.packets import ETHERNET_NBYTES, SUM_AT
from gradwire_gateware.packer import Packer
from gradwire_gateware.queues import Queue, open_memory
from gradwire_gateware.stream import AxiStream, Circuit, Pipeline, clipped, count_kept, first_bytes

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
    "size": 16,  # bytes of the payload after them
    "tail": 24,  # bytes after the payload
    "tail_count": 2,
}


class Composer(Circuit):
    """A composer of a queued frame and its payload into one frame, by ``order`` while ``told`` is high.

    ``takes`` marks the cycle in which an order is complete. A composed frame has the headers, the extra
    bytes, the payload, and the tail, each in groups for the ``Packer``. Unused parts of the frame or the
    payload are drained from their memory meanwhile; the next frame that needs this memory waits.
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
