"""The direction from the link to the host, which decompresses packets and drops damaged packets."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Value
from amaranth.lib import wiring

from gradwire.codecs import Inceptionn
from gradwire_gateware.formats import GROUP_LANES
from gradwire_gateware.inceptionn.decompressor import InceptionnDecompressor
from gradwire_gateware.nic.composer import FACTS, ORDER, Bounded, Composer, Finisher
from gradwire_gateware.nic.intake import Intake, align, strip
from gradwire_gateware.nic.packets import (
    ETHERNET_NBYTES,
    SHIM_NBYTES,
    SUM_AT,
    TCP,
    TOS,
    VERSION,
    big,
    folded,
    frame_words,
    head_of,
    offer,
    swapped,
)
from gradwire_gateware.nic.seal import Seal, TcpSum
from gradwire_gateware.queues import Queue, open_memory, taken_together
from gradwire_gateware.stream import Circuit, Pipeline, block_ports, registered, stream

_CUT_NBYTES = 6
"""The largest number of bytes before the payload in a body: three bytes of each incomplete float."""


class Receiver(Circuit):
    """A forwarder of Ethernet frames from the link that decompresses packets of a peer's NIC.

    Every frame waits while its whole floats are decompressed into a memory, and its CRC is verified. It
    is dropped, leaves unchanged or, once its new checksum is known, leaves with the decompressed payload.
    """

    def __init__(self, codec: Inceptionn, width: int = 256, *, mtu: int = 1500, tos: int = TOS) -> None:
        self._codec, self._mtu, self._tos = codec, mtu, tos
        super().__init__(block_ports(width))

    def _describe(self, m: Module) -> None:
        width = len(self.s_axis.tdata)
        words = frame_words(self._mtu, width)
        m.submodules.intake = intake = Intake(width, self._tos, self._mtu, 2 * words + 64)
        wiring.connect(m, wiring.flipped(self.s_axis), intake.s_axis)
        plans = self._plan(m, intake)
        payloads = self._decompress(m, intake, words)
        orders, exits = self._decide(m, plans)

        m.submodules.composer = composer = Composer(width, TCP)
        composer.follow(m, intake.kept, payloads, orders)
        m.submodules.finisher = finisher = Finisher(width, TcpSum(width), 2 * words + 8)
        finisher.follow(m, composer.m_axis, exits)
        wiring.connect(m, finisher.m_axis, wiring.flipped(self.m_axis))

    def _plan(self, m: Module, intake: Intake) -> Queue:
        """Queue each part's instructions for the next frame."""
        stage = Pipeline(m, Const(1))
        head: Any = intake.head
        found = stage.hold(intake.found, resets=True)
        claims, headers, end = stage.hold_all(head.claims, head.headers, head.end)
        wanted = stage.hold(head.fits & head.claims & (head.payload >= SHIM_NBYTES))
        payload, total = stage.hold(head.payload), stage.hold(head.sum)
        is_sound = stage.hold(head.is_sound & head.is_single)
        self._starts = Queue(m, "starts", {"wanted": 1, "headers": 7, "end": 16, "payload": 16})
        self._starts.put(found, wanted=wanted, headers=headers, end=end, payload=payload)
        self._bodies = Queue(m, "bodies", {"payload": 16})
        self._bodies.put(found & wanted, payload=payload)
        plans = Queue(m, "plans", {"wanted": 1, "is_bad": 1, "headers": 7, "sum": 19})
        plans.put(found, wanted=wanted, is_bad=claims & ~(wanted & is_sound), headers=headers, sum=total)
        rooms = [queue.has_room for queue in (self._starts, self._bodies, plans)]
        m.d.comb += intake.has_room.eq(Cat(rooms).all())
        return plans

    def _decompress(self, m: Module, intake: Intake, words: int) -> Any:
        """Return the stream of decompressed payloads, and queue their CRCs, shims, and sizes."""
        width = len(self.s_axis.tdata)
        self._seals = seals = Queue(m, "seals", {"crc": 32, "is_whole": 1})
        fields = {"is_bad": 1, "crc": 32, "payload": 16, "floats": 14, "head": 2, "tail": 2}
        self._shims = shims = Queue(m, "shims", {**fields, "cut": 8 * _CUT_NBYTES})
        self._sizes = sizes = Queue(m, "sizes", {"size": 20}, depth=31)
        cuts = Queue(m, "cuts", {"skip": 4, "nbytes": 16})
        m.submodules.seal = meter = Seal(width, offer(self._codec))
        m.submodules.decompressor = decompressor = InceptionnDecompressor(self._codec, width)
        m.submodules.bounded = bounded = Bounded(width, words)

        stripped, is_here, word = strip(m, intake.read, self._starts, meter, (seals, shims, cuts))
        seals.put(meter.done, crc=meter.result, is_whole=meter.is_whole)
        self._read_shim(m, is_here, word, cuts)
        aligned = align(m, stripped, cuts, SHIM_NBYTES + _CUT_NBYTES, (sizes,))
        wiring.connect(m, aligned, decompressor.s_axis)
        restored = stream(width)
        payloads, has_room = open_memory(m, "payloads", restored, 2 * words + 8)
        registered(m, decompressor.m_axis, bounded.s_axis, has_room)
        registered(m, bounded.m_axis, restored)
        sizes.put(bounded.done, size=bounded.size)
        return payloads

    def _read_shim(self, m: Module, is_here: Value, word: Value, cuts: Queue) -> None:
        """Read the shim and the bytes of incomplete floats from a stripped packet's first word."""
        stage = Pipeline(m, Const(1))
        bodies, shims = self._bodies, self._shims
        m.d.comb += bodies.takes.eq(is_here)
        valid, size = stage.hold(is_here, resets=True), stage.hold(bodies.first.payload)
        payload, phase, crc = stage.hold(big(word, 0, 2)), stage.hold(word[16:18]), stage.hold(word[32:64])
        is_foreign = stage.hold((word[18:24] != VERSION << 2) | (word[24:32] != self._codec.wire_id))
        cut = stage.hold(word[8 * SHIM_NBYTES : 8 * (SHIM_NBYTES + _CUT_NBYTES)])

        head = stage.hold(head_of(phase))
        rest = stage.hold((payload - head_of(phase))[:17])  # negative if the payload is shorter
        valid, size = stage.hold(valid, resets=True), stage.hold(size)
        payload, crc, is_foreign = stage.hold(payload), stage.hold(crc), stage.hold(is_foreign)
        cut = stage.hold(cut)

        tail, floats = stage.hold(rest[:2]), stage.hold(rest[2:16])
        is_bad = stage.hold(is_foreign | rest[16] | ~rest[2:16].any())
        skip = stage.hold((head + rest[:2] + SHIM_NBYTES)[:4])
        valid = stage.hold(valid, resets=True)
        size, head, payload, crc, cut = stage.hold_all(size, head, payload, crc, cut)

        nbytes = (size - skip)[:17]
        cuts.put(valid, skip=skip, nbytes=Mux(nbytes[16], 0, nbytes[:16]))
        shims.put(
            valid,
            is_bad=is_bad | nbytes[16],
            crc=crc,
            payload=payload,
            floats=floats,
            head=head,
            tail=tail,
            cut=cut,
        )

    def _decide(self, m: Module, plans: Queue) -> tuple[Queue, Queue]:
        """Queue the composer's orders. An invalid compressed packet is dropped."""
        stage = Pipeline(m, Const(1))
        orders, exits = Queue(m, "orders", ORDER), Queue(m, "exits", FACTS)
        plan, seal, shim, size = plans.first, self._seals.first, self._shims.first, self._sizes.first.size
        parts = (self._seals, self._shims, self._sizes)
        decides = taken_together(m, plans, parts, (orders, exits))

        groups = (shim.floats + GROUP_LANES - 1) >> (GROUP_LANES.bit_length() - 1)
        valid, plan_bits = stage.hold(decides, resets=True), stage.hold(plan.as_value())
        is_right = stage.hold(seal.is_whole & ~shim.is_bad & (seal.crc == shim.crc))
        is_full = stage.hold(size == Cat(Const(0, 5), groups))
        fields = stage.hold(shim.as_value())
        length = stage.hold((plan.headers + shim.payload - ETHERNET_NBYTES)[:17])

        plan, shim = plan.shape()(plan_bits), shim.shape()(fields)
        restores = stage.hold(plan.wanted & ~plan.is_bad & is_right & is_full & (length <= self._mtu))
        drops = plan.wanted | plan.is_bad
        sums: Value = stage.hold((plan.sum + swapped(length) + (TCP << 8))[:20])
        kept = stage.hold(
            Cat(plan.wanted, drops, plan.headers, length[:16], shim.head, shim.tail, shim.floats)
        )
        valid = stage.hold(valid, resets=True)
        cut = stage.hold(shim.cut)
        tail = stage.hold((shim.cut >> Cat(Const(0, 3), shim.head))[:24])

        once, kept, restores = stage.hold_all(folded(sums), kept, restores)
        valid, cut, tail = stage.hold(valid, resets=True), stage.hold(cut), stage.hold(tail)
        wanted, drops, headers, length = kept[0], kept[1] & ~restores, kept[2:9], kept[9:25]
        orders.put(
            valid,
            is_composed=restores,
            is_dropped=drops,
            has_payload=wanted,
            headers=headers,
            length=length,
            checksum=~folded(once)[:16],
            extra=cut[:24],
            extra_count=kept[25:27],
            size=Cat(Const(0, 2), kept[29:43]),
            tail=tail,
            tail_count=kept[27:29],
        )
        exits.put(
            valid & ~drops,
            is_composed=restores,
            headers=headers,
            end=(length + ETHERNET_NBYTES)[:16],
            place=Const(SUM_AT // 2),
        )
        return orders, exits
