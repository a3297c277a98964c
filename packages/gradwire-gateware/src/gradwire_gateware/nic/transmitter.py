"""The direction from the host to the link, which compresses marked payloads that become smaller."""

from __future__ import annotations

from typing import Any

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from gradwire.codecs import Inceptionn
from gradwire_gateware import LANE_BITS
from gradwire_gateware.formats import GROUP_LANES, GROUP_NBYTES
from gradwire_gateware.inceptionn.compressor import InceptionnCompressor
from gradwire_gateware.nic.composer import FACTS, ORDER, Bounded, Composer, Finisher
from gradwire_gateware.nic.intake import Intake, align, between, strip
from gradwire_gateware.nic.packets import (
    COMPRESSED,
    ETHERNET_NBYTES,
    SHIM_NBYTES,
    TOS,
    VERSION,
    folded,
    frame_words,
    head_of,
    offer,
    swapped,
)
from gradwire_gateware.nic.seal import Seal, TcpSum
from gradwire_gateware.queues import Queue, open_memory, taken_together
from gradwire_gateware.stream import Circuit, Pipeline, block_ports, clipped, first_bytes, registered, stream

# The connections whose outgoing data a NIC compresses; the host's driver writes them.

KEY_BITS = 96
FLOW = data.StructLayout({"source": 32, "destination": 32, "ports": 32, "first": 2, "is_open": 1})
"""A connection: outgoing packets' addresses and ports, byte 0 first; its first sequence number modulo 4."""


class FlowTable(Circuit):
    """A table of connections.

    ``is_open`` and ``first`` of the entry for ``key`` follow two cycles later. In each cycle in which
    ``write`` is high, ``flow`` is written to entry ``index``.
    """

    LATENCY = 2

    def __init__(self, flows: int) -> None:
        self._flows = flows
        super().__init__(
            {
                "write": In(1),
                "index": In(range(max(2, flows))),
                "flow": In(FLOW),
                "key": In(KEY_BITS),
                "is_open": Out(1),
                "first": Out(2),
            }
        )

    def _describe(self, m: Module) -> None:
        """Describe the circuit. The key is compared with all connections in parallel."""
        stage = Pipeline(m, Const(1))
        flows = [Signal(FLOW, name=f"flow{index}") for index in range(self._flows)]
        with m.If(self.write):
            m.d.sync += Array(flows)[self.index].eq(self.flow)
        parts = [
            stage.hold(
                Cat(
                    flow.is_open,
                    *(
                        self.key.word_select(at, 16) == flow.as_value()[:KEY_BITS].word_select(at, 16)
                        for at in range(KEY_BITS // 16)
                    ),
                )
            )
            for flow in flows
        ]
        hits = Cat(part.all() for part in parts)
        firsts = [flow.first & part.all().replicate(2) for flow, part in zip(flows, parts, strict=True)]
        first = firsts[0]
        for each in firsts[1:]:
            first = first | each
        m.d.comb += [self.is_open.eq(stage.hold(hits.any())), self.first.eq(stage.hold(first))]


# The whole floats of a payload, and the bytes of an incomplete float after them.


class Split(Circuit):
    """A block that cuts packets after ``floats`` floats, with the next three bytes as ``tail``.

    ``floats`` is read while ``told`` is high, and must be stable until ``takes_last``. One cycle later,
    ``done`` is high and ``tail`` is valid. The number of valid bytes in the tail isn't computed here.
    """

    def __init__(self, width: int) -> None:
        super().__init__(
            {
                **block_ports(width),
                "told": In(1),
                "floats": In(14),
                "takes_last": Out(1),
                "tail": Out(24),
                "done": Out(1),
            }
        )

    def _describe(self, m: Module) -> None:
        """Describe the circuit. If the floats fill their last word, the tail has a separate word."""
        come, out = self.s_axis, self.m_axis
        lanes = len(come.tdata) // LANE_BITS
        within, left = Signal(), Signal(len(self.floats))
        rest = Mux(within, left, self.floats)
        kept = Signal(lanes)
        passes = ~within | (rest != 0)
        moves = come.tvalid & come.tready
        m.d.comb += [
            kept.eq(first_bytes(clipped(rest, lanes), lanes)),
            out.tdata.eq(come.tdata),
            out.tkeep.eq(Cat(bit.replicate(LANE_BITS // 8) for bit in kept)),
            out.tlast.eq(come.tlast | (rest <= lanes)),
            out.tvalid.eq(self.told & come.tvalid & passes),
            come.tready.eq(self.told & (out.tready | ~passes)),
            self.takes_last.eq(moves & come.tlast),
        ]
        with m.If(moves):
            m.d.sync += [within.eq(~come.tlast), left.eq(Mux(rest <= lanes, 0, rest - lanes))]
        m.d.sync += [
            self.tail.eq(come.tdata.word_select(rest[: lanes.bit_length() - 1], LANE_BITS)),
            self.done.eq(moves & come.tlast),
        ]


ON_THEIR_WAY = {256: 19, 512: 26}
"""The largest number of payload words in the compressor and the registers around it, by width."""


def flow_ports(flows: int) -> dict[str, Any]:
    """Return the ports through which a driver writes a connection, as in ``FlowTable``."""
    return {
        "flow_write": In(1),
        "flow_index": In(range(max(2, flows))),
        "flow_source": In(32),
        "flow_destination": In(32),
        "flow_ports": In(32),
        "flow_first": In(2),
        "flow_open": In(1),
    }


class Transmitter(Circuit):
    """A forwarder of Ethernet frames to the link that compresses payloads as ``gradwire nic`` does.

    Every frame waits while its payload, from the first whole float on, is compressed into a memory, and its
    checksum is verified. It leaves unchanged or, once its CRC is known, with the shim and compressed payload.
    """

    def __init__(
        self, codec: Inceptionn, width: int = 256, *, mtu: int = 1500, flows: int = 8, tos: int = TOS
    ) -> None:
        self._codec, self._mtu, self._flows, self._tos = codec, mtu, flows, tos
        super().__init__({**block_ports(width), **flow_ports(flows)})

    def _describe(self, m: Module) -> None:
        width = len(self.s_axis.tdata)
        words = frame_words(self._mtu, width)
        m.submodules.intake = intake = Intake(width, self._tos, self._mtu, 2 * words + 64)
        wiring.connect(m, wiring.flipped(self.s_axis), intake.s_axis)
        plans = self._plan(m, intake)
        payloads = self._compress(m, intake, 2 * -(-words * GROUP_NBYTES // (4 * GROUP_LANES)) + 8)
        orders, exits = self._decide(m, plans)

        m.submodules.composer = composer = Composer(width, COMPRESSED)
        composer.follow(m, intake.kept, payloads, orders)
        seal = Seal(width, offer(self._codec))
        m.submodules.finisher = finisher = Finisher(width, seal, 2 * words + 8)
        finisher.follow(m, composer.m_axis, exits)
        wiring.connect(m, finisher.m_axis, wiring.flipped(self.m_axis))

    def _plan(self, m: Module, intake: Intake) -> Queue:
        """Look up connections, and queue each part's instructions for the next frame."""
        m.submodules.flows = flows = FlowTable(self._flows)
        stage = Pipeline(m, Const(1))
        head: Any = intake.head
        m.d.comb += [
            flows.write.eq(self.flow_write),
            flows.index.eq(self.flow_index),
            *(
                flows.flow[name].eq(getattr(self, f"flow_{port}"))
                for name, port in (
                    ("source", "source"), ("destination", "destination"), ("ports", "ports"),
                    ("first", "first"), ("is_open", "open"),
                )
            ),
            flows.key.eq(Cat(head.source, head.destination, head.ports)),
        ]  # fmt: skip
        may_shrink = head.fits & head.is_data & (head.payload > SHIM_NBYTES)
        found, fields = intake.found, Cat(head.headers, head.end, head.payload, head.sum)
        sequence = head.sequence
        may_shrink, sequence = (stage.delay(each, FlowTable.LATENCY) for each in (may_shrink, sequence))
        found = stage.delay(found, FlowTable.LATENCY + 1, resets=True)
        fields = stage.delay(fields, FlowTable.LATENCY + 1)
        wanted = stage.hold(may_shrink & flows.is_open)
        phase = stage.hold((sequence - flows.first)[:2])
        found = stage.hold(found, resets=True)
        rest = stage.hold((fields[23:39] - head_of(phase))[:16])
        wanted, phase, fields = stage.hold(wanted), stage.hold(phase), stage.hold(fields)
        headers, end, payload, total = fields[:7], fields[7:23], fields[23:39], fields[39:]

        self._starts = Queue(m, "starts", {"wanted": 1, "headers": 7, "end": 16, "payload": 16})
        self._starts.put(found, wanted=wanted, headers=headers, end=end, payload=payload)
        self._cuts = Queue(m, "cuts", {"skip": 2, "nbytes": 16})
        self._cuts.put(found & wanted, skip=head_of(phase), nbytes=rest)
        self._floats = Queue(m, "floats", {"count": 14})
        self._floats.put(found & wanted, count=rest[2:])
        plans = Queue(
            m, "plans", {"wanted": 1, "headers": 7, "payload": 16, "sum": 19, "phase": 2, "tail": 2}
        )
        plans.put(
            found, wanted=wanted, headers=headers, payload=payload, sum=total, phase=phase, tail=rest[:2]
        )
        rooms = [queue.has_room for queue in (self._starts, self._cuts, self._floats, plans)]
        m.d.comb += intake.has_room.eq(Cat(rooms).all())
        return plans

    def _compress(self, m: Module, intake: Intake, depth: int) -> Any:
        """Return the stream of compressed payloads, and queue their checksums, edges, and sizes."""
        width = len(self.s_axis.tdata)
        self._sums = sums = Queue(m, "sums", {"is_right": 1})
        self._heads = heads = Queue(m, "heads", {"head": 24})
        self._tails = tails = Queue(m, "tails", {"tail": 24})
        self._sizes = sizes = Queue(m, "sizes", {"size": 16}, depth=31)
        m.submodules.sum = meter = TcpSum(width)
        m.submodules.split = split = Split(width)
        m.submodules.compressor = compressor = InceptionnCompressor(self._codec, width)
        m.submodules.bounded = bounded = Bounded(width, depth)

        stripped, is_here, word = strip(m, intake.read, self._starts, meter, (sums, heads))
        sums.put(meter.done, is_right=meter.is_whole & (meter.result == 0))
        heads.put(is_here, head=word[:24])
        wiring.connect(m, align(m, stripped, self._cuts, 3), split.s_axis)
        floats, may_split = between(m, "floats_out", split.m_axis)
        m.d.comb += [
            split.told.eq(self._floats.has & tails.has_room & sizes.has_room & may_split),
            split.floats.eq(self._floats.first.count),
            self._floats.takes.eq(split.takes_last),
        ]
        tails.put(split.done, tail=split.tail)
        sizes.put(bounded.done, size=bounded.size[:16])
        packed = stream(width)
        payloads, has_room = open_memory(m, "payloads", packed, depth, ON_THEIR_WAY[width])
        registered(m, floats, compressor.s_axis, has_room)
        registered(m, compressor.m_axis, bounded.s_axis)
        registered(m, bounded.m_axis, packed)
        return payloads

    def _decide(self, m: Module, plans: Queue) -> tuple[Queue, Queue]:
        """Queue the composer's orders. A compressed body must be smaller than its payload."""
        stage = Pipeline(m, Const(1))
        orders, exits = Queue(m, "orders", ORDER), Queue(m, "exits", FACTS)
        plan, parts = plans.first, (self._sums, self._heads, self._tails, self._sizes)
        decides = taken_together(m, plans, parts, (orders, exits))

        valid = stage.hold(decides, resets=True)
        wanted, headers, payload, phase = stage.hold_all(plan.wanted, plan.headers, plan.payload, plan.phase)
        total = stage.hold(plan.sum)
        edges = stage.hold(head_of(plan.phase) + plan.tail)
        size = stage.hold(self._sizes.first.size)
        head_count, tail = stage.hold_all(head_of(plan.phase), self._tails.first.tail)
        head, is_right = stage.hold_all(self._heads.first.head, self._sums.first.is_right)

        body = stage.hold((size + edges + SHIM_NBYTES)[:16])
        head = head & Cat(bit.replicate(8) for bit in first_bytes(head_count, 3))
        cut = stage.hold((head | (tail << Cat(Const(0, 3), head_count)))[:48])
        valid, wanted, is_right = stage.hold(valid, resets=True), stage.hold(wanted), stage.hold(is_right)
        headers, payload, phase, total = (stage.hold(each) for each in (headers, payload, phase, total))
        edges, size = stage.hold(edges), stage.hold(size)

        shrinks = stage.hold(wanted & is_right & (body < payload))
        length = stage.hold((body + headers - ETHERNET_NBYTES)[:16])
        valid, wanted, headers = stage.hold(valid, resets=True), stage.hold(wanted), stage.hold(headers)
        shim = Cat(
            payload[8:], payload[:8], phase, Const(0, 2), Const(VERSION, 4), Const(self._codec.wire_id, 8)
        )
        extra, count = stage.hold(Cat(shim, Const(0, 32), cut)), stage.hold(edges + SHIM_NBYTES)
        size, total = stage.hold(size), stage.hold(total)

        sums: Value = stage.hold((total + swapped(length) + (COMPRESSED << 8))[:20])
        valid, kept = stage.hold(valid, resets=True), stage.hold(Cat(wanted, headers, shrinks, length))
        extra, count, size = stage.hold(extra), stage.hold(count), stage.hold(size)
        once = stage.hold(folded(sums))
        valid, kept = stage.hold(valid, resets=True), stage.hold(kept)
        extra, count, size = stage.hold(extra), stage.hold(count), stage.hold(size)
        wanted, headers, shrinks, length = kept[0], kept[1:8], kept[8], kept[9:]
        orders.put(
            valid,
            is_composed=shrinks,
            has_payload=wanted,
            headers=headers,
            length=length,
            checksum=~folded(once)[:16],
            extra=extra,
            extra_count=count,
            size=size,
        )
        exits.put(
            valid,
            is_composed=shrinks,
            headers=headers,
            end=(length + ETHERNET_NBYTES)[:16],
            place=(headers + SHIM_NBYTES // 2)[1:],
        )
        return orders, exits
