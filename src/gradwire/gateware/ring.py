"""The ring all-reduce in hardware: one engine per rank, joined to its neighbours by streams of payloads."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from gradwire.codecs import Bfp, Codec, Inceptionn
from gradwire.gateware.adder import LATENCY, float_sum
from gradwire.gateware.bfp_compressor import BfpCompressor
from gradwire.gateware.bfp_decompressor import BfpDecompressor
from gradwire.gateware.inceptionn_compressor import InceptionnCompressor
from gradwire.gateware.inceptionn_decompressor import InceptionnDecompressor
from gradwire.gateware.ring_routes import Ring
from gradwire.gateware.stream import AxiStream, Pipeline, SkidBuffer, block_ports
from gradwire.gateware.words import LANE_BITS


class RingEngine(wiring.Component):
    """All-reduces packets of ``chunk_words`` words: ``world`` of them in, their sums out, in ``host_order``.

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

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
        ring, routes, width = self._ring, self._ring.routes, self._ring.width
        m.submodules.compressor = compressor = _compressor(ring.codec, width)
        m.submodules.decompressor = decompressor = _decompressor(ring.codec, width)
        m.submodules.adopter = adopter = _decompressor(ring.codec, width)
        m.submodules.sender = sender = SkidBuffer(width)
        m.submodules.adder = adder = WordAdder(width)
        received = _memory(m, "received", self.rx_axis, ring.payload_words)
        sums = _memory(m, "sums", adder.m_axis, ring.chunk_words)
        wiring.connect(m, sender.m_axis, wiring.flipped(self.tx_axis))

        # Every consumer's tready is free of its own tvalid; of two consumers, each waits for the other.
        coded, to_right = compressor.m_axis, sender.s_axis
        decoder = _buffered(m, "arriving", decompressor.s_axis)
        own_decoder = _buffered(m, "adopting", adopter.s_axis)
        forwards = _route(m, received, routes.received_is_forwarded)
        sends_forwarded = _route(m, to_right, routes.sent_is_forwarded)
        publishes = _route(m, coded, routes.encoded_is_published)
        may_decode = ~forwards | (to_right.tready & sends_forwarded)
        may_send = ~publishes | own_decoder.tready
        m.d.comb += [
            received.tready.eq(decoder.tready & may_decode),
            *_copy(decoder, received),
            decoder.tvalid.eq(received.tvalid & may_decode),
            coded.tready.eq(to_right.tready & ~sends_forwarded & may_send),
            *_copy(own_decoder, coded),
            own_decoder.tvalid.eq(coded.tvalid & publishes & to_right.tready & ~sends_forwarded),
            *_select(to_right, sends_forwarded, received, coded),
            to_right.tvalid.eq(
                Mux(sends_forwarded, received.tvalid & forwards & decoder.tready, coded.tvalid & may_send)
            ),
        ]
        m.submodules.decoded = decoded = SkidBuffer(width)
        wiring.connect(m, decompressor.m_axis, decoded.s_axis)
        self._connect_values(m, compressor.s_axis, decoded.m_axis, adopter.m_axis, adder, sums)
        return m

    def _connect_values(
        self, m: Module, encoder: Any, decoded: Any, own: Any, adder: WordAdder, sums: Any
    ) -> None:
        """Join the streams of float32: the first local packet is encoded, the others meet the left's sums."""
        routes = self._ring.routes
        local, added, result = self.s_axis, adder.s_axis, _buffered(m, "results", self.m_axis)
        is_first = _route(m, local, routes.encoded_is_local)
        encodes_local = _route(m, encoder, routes.encoded_is_local)
        adds = _route(m, decoded, routes.decoded_is_added)
        gives_own = _route(m, result, routes.given_is_own)
        has_both = local.tvalid & ~is_first & decoded.tvalid & adds
        m.d.comb += [
            *_select(encoder, encodes_local, local, sums),
            encoder.tvalid.eq(Mux(encodes_local, local.tvalid & is_first, sums.tvalid)),
            sums.tready.eq(encoder.tready & ~encodes_local),
            local.tready.eq(Mux(is_first, encoder.tready & encodes_local, added.tready & has_both)),
            decoded.tready.eq(Mux(adds, added.tready & has_both, result.tready & ~gives_own)),
            *_copy(added, local),
            added.tvalid.eq(has_both),
            adder.b.eq(decoded.tdata),
            *_select(result, gives_own, own, decoded),
            result.tvalid.eq(Mux(gives_own, own.tvalid, decoded.tvalid & ~adds)),
            own.tready.eq(result.tready & gives_own),
        ]


class WordAdder(wiring.Component):
    """Adds ``b`` to the words of a stream, lane by lane."""

    def __init__(self, width: int) -> None:
        super().__init__({**block_ports(width), "b": In(width)})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
        come, out = self.s_axis, self.m_axis
        m.d.comb += come.tready.eq(~out.tvalid | out.tready)
        stage = Pipeline(m, come.tready)
        lanes = len(come.tdata) // LANE_BITS
        sums = [
            float_sum(stage, come.tdata.word_select(lane, LANE_BITS), self.b.word_select(lane, LANE_BITS))
            for lane in range(lanes)
        ]
        valid, marks = come.tvalid, Cat(come.tkeep, come.tlast)
        for _ in range(LATENCY):
            valid, marks = stage.hold(valid, resets=True), stage.hold(marks)
        m.d.comb += [out.tdata.eq(Cat(sums)), Cat(out.tkeep, out.tlast).eq(marks), out.tvalid.eq(valid)]
        return m


def _compressor(codec: Codec, width: int) -> Any:
    if isinstance(codec, Inceptionn):
        return InceptionnCompressor(codec, width)
    return BfpCompressor(codec, width) if isinstance(codec, Bfp) else SkidBuffer(width)


def _decompressor(codec: Codec, width: int) -> Any:
    if isinstance(codec, Inceptionn):
        return InceptionnDecompressor(codec, width)
    return BfpDecompressor(codec, width) if isinstance(codec, Bfp) else SkidBuffer(width)


def _buffered(m: Module, name: str, go: Any) -> Any:
    """Return a stream to write to that goes on into ``go``, without paths between them."""
    m.submodules[name] = buffer = SkidBuffer(len(go.tdata))
    out = buffer.m_axis
    m.d.comb += [*_copy(go, out), go.tvalid.eq(out.tvalid), out.tready.eq(go.tready)]
    return buffer.s_axis


def _memory(m: Module, name: str, come: Any, depth: int) -> Any:
    """Return the stream of a FIFO that takes ``come``."""
    payload = Cat(come.tdata, come.tkeep, come.tlast)
    m.submodules[name] = fifo = SyncFIFOBuffered(width=len(payload), depth=depth)
    out = AxiStream(len(come.tdata)).create()
    m.d.comb += [
        fifo.w_data.eq(payload),
        fifo.w_en.eq(come.tvalid),
        come.tready.eq(fifo.w_rdy),
        Cat(out.tdata, out.tkeep, out.tlast).eq(fifo.r_data),
        out.tvalid.eq(fifo.r_rdy),
        fifo.r_en.eq(out.tready),
    ]
    return out


def _copy(to: Any, source: Any) -> list[Any]:
    """Return the statements that give ``to`` the words of a stream."""
    return [getattr(to, name).eq(getattr(source, name)) for name in ("tdata", "tkeep", "tlast")]


def _select(to: Any, condition: Value, one: Any, other: Any) -> list[Any]:
    """Return the statements that give ``to`` the words of one of two streams."""
    return [
        getattr(to, name).eq(Mux(condition, getattr(one, name), getattr(other, name)))
        for name in ("tdata", "tkeep", "tlast")
    ]


def _route(m: Module, stream: Any, table: tuple[bool, ...]) -> Signal:
    """Return what ``table`` says of the current packet of a stream; it begins again after its end."""
    route, index = Signal(), Signal(range(len(table)))
    bits = Const(sum(entry << at for at, entry in enumerate(table)), len(table))
    m.d.comb += route.eq(bits.bit_select(index, 1))
    with m.If(stream.tvalid & stream.tready & stream.tlast):
        m.d.sync += index.eq(Mux(index == len(table) - 1, 0, index + 1))
    return route
