"""The ring all-reduce in hardware: one engine per rank, joined to its neighbours by streams of payloads."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from gradwire.codecs import Bfp, Inceptionn
from gradwire_gateware import LANE_BITS
from gradwire_gateware.adder import LATENCY, float_sum
from gradwire_gateware.bfp import BfpCompressor, BfpDecompressor
from gradwire_gateware.inceptionn.compressor import InceptionnCompressor
from gradwire_gateware.inceptionn.decompressor import InceptionnDecompressor
from gradwire_gateware.queues import memory, open_memory
from gradwire_gateware.ring_routes import Ring
from gradwire_gateware.stream import (
    AxiStream,
    Circuit,
    Pipeline,
    SkidBuffer,
    block_ports,
    copy,
    forward,
    registered,
    send,
    stream,
)

_PARTED = 2
"""The words for the adder, or for the host, that can wait, and as many may be on their way."""


class RingEngine(Circuit):
    """An all-reduce of packets of ``chunk_words`` words: ``world`` in, their sums out, in ``host_order``.

    The host's streams carry float32, a chunk as a packet; those of the neighbours carry payloads. Received
    chunks are decompressed and added to local ones, and the sums are compressed and sent. The rank that
    finishes a chunk decompresses what it sends and adopts that; the others forward the payload as it came,
    so that all ranks have the same bits. Each place that a packet passes counts packets, and ``Routes``, read
    off the steps of ``collectives.ring``, says where each goes, so that packets follow without a pause.

    Free of deadlock: a chunk that arrives always has room, encoded in one memory and summed in another, so
    that no engine waits for the one on its right to begin. For C words of a chunk and N ranks, the results
    are complete after (2 N - 1) C cycles and a latency: N - 1 chunks come from the host before the last one,
    whose sum is the first of N that go to it. The own sum has a decompressor of its own, so that the other
    one passes what the left sends, a word in every cycle.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        width = ring.width
        super().__init__(
            {**block_ports(width), "rx_axis": In(AxiStream(width)), "tx_axis": Out(AxiStream(width))}
        )

    def _describe(self, m: Module) -> None:
        ring, routes, width = self._ring, self._ring.routes, self._ring.width
        encoder, coded = self._compressor(m)
        decoder, decoded = self._decompressor(m, "decompressor")
        own_decoder, own = self._decompressor(m, "adopter")
        m.submodules.sender = sender = SkidBuffer(width)
        is_large = isinstance(ring.codec, Inceptionn)  # most of a chip
        m.submodules.adder = adder = WordAdder(width, ring.chunk_words, is_large=is_large)
        received = memory(m, "received", self.rx_axis, ring.payload_words, is_apart=is_large)
        wiring.connect(m, sender.m_axis, wiring.flipped(self.tx_axis))

        # Every consumer's tready is free of its own tvalid; of two consumers, each waits for the other.
        to_right = sender.s_axis
        forwards = _route(m, received, routes.received_is_forwarded)
        sends_forwarded = _route(m, to_right, routes.sent_is_forwarded)
        publishes = _route(m, coded, routes.encoded_is_published)
        may_decode = ~forwards | (to_right.tready & sends_forwarded)
        may_send = ~publishes | own_decoder.tready
        m.d.comb += [
            received.tready.eq(decoder.tready & may_decode),
            copy(decoder, received),
            decoder.tvalid.eq(received.tvalid & may_decode),
            coded.tready.eq(to_right.tready & ~sends_forwarded & may_send),
            copy(own_decoder, coded),
            own_decoder.tvalid.eq(coded.tvalid & publishes & to_right.tready & ~sends_forwarded),
            *_select(to_right, sends_forwarded, received, coded),
            to_right.tvalid.eq(
                Mux(sends_forwarded, received.tvalid & forwards & decoder.tready, coded.tvalid & may_send)
            ),
        ]
        self._connect_values(m, encoder, decoded, own, adder)

    def _compressor(self, m: Module) -> tuple[Any, Any]:
        """Return the streams into the compressor and out of it, behind buffers; they are one for identity."""
        codec, width = self._ring.codec, self._ring.width
        if isinstance(codec, Bfp):
            block: Any = BfpCompressor(codec, width)
        elif isinstance(codec, Inceptionn):
            block = InceptionnCompressor(codec, width, masks=True)
        else:
            return (wires := stream(width)), wires
        m.submodules.compressor = block
        m.submodules.compressor_in = come = SkidBuffer(width)
        m.submodules.compressor_out = go = SkidBuffer(width)
        if isinstance(codec, Bfp):
            wiring.connect(m, come.m_axis, block.s_axis)
        else:
            between = stream(width)  # the lanes are far apart
            registered(m, come.m_axis, between)
            registered(m, between, block.s_axis)
        wiring.connect(m, block.m_axis, go.s_axis)
        return come.s_axis, go.m_axis

    def _decompressor(self, m: Module, name: str) -> tuple[Any, Any]:
        """Return the streams into a decompressor and out of it; they are one for identity."""
        codec, width = self._ring.codec, self._ring.width
        if isinstance(codec, Bfp):
            block: Any = BfpDecompressor(codec, width)
        elif isinstance(codec, Inceptionn):
            block = InceptionnDecompressor(codec, width)
        else:
            return (wires := stream(width)), wires
        m.submodules[name] = block
        return block.s_axis, block.m_axis

    def _connect_values(
        self, m: Module, encoder: Any, decoded: Any, published: Any, adder: WordAdder
    ) -> None:
        """Join the streams of float32: the first local packet is encoded, the others meet the left's sums.

        Buffers keep adder, adopter and host apart, which are far from each other on a chip. What comes from
        the left waits for room in front of both, adder and host, because registers know of that.
        """
        routes = self._ring.routes
        local, added, sums = self.s_axis, adder.s_axis, adder.m_axis
        result = _buffered(m, "results", self.m_axis)
        to_adder, to_result, adopted = (stream(self._ring.width) for _ in range(3))
        to_own = _buffered(m, "adopted", adopted)
        addend, adds_more = open_memory(m, "addends", to_adder, _PARTED, _PARTED)
        arrival, gives_more = open_memory(m, "arrivals", to_result, _PARTED, _PARTED)
        is_first = _route(m, local, routes.encoded_is_local)
        encodes_local = _route(m, encoder, routes.encoded_is_local)
        adds = _route(m, decoded, routes.decoded_is_added)
        gives_own = _route(m, result, routes.given_is_own)
        has_both = local.tvalid & ~is_first & addend.tvalid
        m.d.comb += [
            *_select(encoder, encodes_local, local, sums),
            encoder.tvalid.eq(Mux(encodes_local, local.tvalid & is_first, sums.tvalid)),
            sums.tready.eq(encoder.tready & ~encodes_local),
            local.tready.eq(Mux(is_first, encoder.tready & encodes_local, added.tready & has_both)),
            addend.tready.eq(added.tready & has_both),
            copy(added, local),
            added.tvalid.eq(has_both),
            adder.b.eq(addend.tdata),
            copy(to_adder, decoded),
            copy(to_result, decoded),
            to_adder.tvalid.eq(decoded.tvalid & decoded.tready & adds),
            to_result.tvalid.eq(decoded.tvalid & decoded.tready & ~adds),
            decoded.tready.eq(adds_more & gives_more),
            *forward(published, to_own),
            *_select(result, gives_own, adopted, arrival),
            result.tvalid.eq(Mux(gives_own, adopted.tvalid, arrival.tvalid)),
            adopted.tready.eq(result.tready & gives_own),
            arrival.tready.eq(result.tready & ~gives_own),
        ]


class WordAdder(Circuit):
    """An adder of ``b`` to the words of a stream, lane by lane; up to ``depth`` sums wait in a memory.

    The adders run in every cycle, so that no signal stops all their registers at once. A word is taken only
    if the memory has room for its sum, which is counted from here to where sums leave. In a block that
    ``is_large``, the memory ``is_apart``.
    """

    def __init__(self, width: int, depth: int, *, is_large: bool = False) -> None:
        self._depth, self._is_large = max(depth, 2 * (1 + LATENCY)), is_large
        super().__init__({**block_ports(width), "b": In(width)})

    def _describe(self, m: Module) -> None:
        come, out = self.s_axis, self.m_axis
        stage = Pipeline(m, Const(1))
        lanes = len(come.tdata) // LANE_BITS
        a, b = stage.hold(come.tdata), stage.hold(self.b)  # of LUT RAM: not in one stage with a comparison
        sums = [
            float_sum(stage, a.word_select(lane, LANE_BITS), b.word_select(lane, LANE_BITS))
            for lane in range(lanes)
        ]
        valid, marks = come.tvalid & come.tready, Cat(come.tkeep, come.tlast)
        valid, marks = stage.delay(valid, 1 + LATENCY, resets=True), stage.delay(marks, 1 + LATENCY)

        added, most = stream(len(come.tdata)), self._depth + 1  # the register keeps the last place free
        room, has_room = Signal(range(most + 1), init=most), Signal(init=1)
        m.d.sync += has_room.eq(room > 1)
        m.d.comb += [come.tready.eq(has_room), *send(added, Cat(sums), marks[:-1], marks[-1], valid)]
        leaving = memory(m, "sums", added, self._depth, is_apart=self._is_large)
        wiring.connect(m, leaving, wiring.flipped(out))
        leaves = stage.hold(out.tvalid & out.tready, resets=True)
        m.d.sync += room.eq(room - (come.tvalid & come.tready) + leaves)


def _buffered(m: Module, name: str, go: Any) -> Any:
    """Return a stream to write to that goes on into ``go``, without paths between them."""
    m.submodules[name] = buffer = SkidBuffer(len(go.tdata))
    m.d.comb += forward(buffer.m_axis, go)
    return buffer.s_axis


def _select(to: Any, condition: Value, one: Any, other: Any) -> list[Any]:
    """Return the statements that give ``to`` the words of one of two streams."""
    return [
        getattr(to, name).eq(Mux(condition, getattr(one, name), getattr(other, name)))
        for name in ("tdata", "tkeep", "tlast")
    ]


def _route(m: Module, stream: Any, table: tuple[bool, ...]) -> Signal:
    """Return the register of what ``table`` says of the current packet; it begins again after its end."""
    route, index = Signal(init=table[0]), Signal(range(len(table)))
    bits = Const(sum(entry << at for at, entry in enumerate(table)), len(table))
    following = Mux(index == len(table) - 1, 0, index + 1)[: len(index)]
    with m.If(stream.tvalid & stream.tready & stream.tlast):
        m.d.sync += [index.eq(following), route.eq(bits.bit_select(following, 1))]
    return route
