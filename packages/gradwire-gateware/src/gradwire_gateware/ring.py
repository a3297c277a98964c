"""The ring all-reduce in hardware: one engine per rank, connected to its neighbours by payload streams."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from gradwire.codecs import Bfp, Inceptionn
from gradwire_gateware import LANE_BITS
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
    leading_zeros,
    registered,
    send,
    stream,
)

# Sums of float32, bit-identical to a CPU's: rounded to nearest, ties to even, with subnormals.

LATENCY = 8
"""The number of pipeline stages of a sum."""
_INFINITY = 0x7F80_0000
_QUIET = 0x0040_0000
_INVALID = 0xFFC0_0000
"""The sum of opposite infinities, as on x86."""


class FloatAdder(Circuit):
    """A pipelined adder. ``sum`` is ``a + b``, ``LATENCY`` cycles of ``enable`` later."""

    def __init__(self) -> None:
        super().__init__({"a": In(LANE_BITS), "b": In(LANE_BITS), "enable": In(1), "sum": Out(LANE_BITS)})

    def _describe(self, m: Module) -> None:
        m.d.comb += self.sum.eq(float_sum(Pipeline(m, self.enable), self.a, self.b))


def float_sum(stage: Pipeline, a: Value, b: Value) -> Value:
    """Return the register of ``a + b``, rounded as on x86; of two NaNs, the first, made quiet.

    The stages are: compare, and compute both exponent differences; select; shift the smaller operand; add;
    count leading zeros; shift, round, and insert non-finite results. A marker bit, which counts as the
    highest set bit, limits the sum's shift to its exponent.
    """
    kinds, swaps = stage.hold_all(_kinds(a, b), b[:31] > a[:31])
    gaps = [stage.hold((_power(one) - _power(other))[:8]) for one, other in ((a, b), (b, a))]
    a, b = stage.hold(a), stage.hold(b)

    is_odd, odd = stage.hold(kinds[:2].any()), stage.hold(_not_finite(a, b, kinds))
    large, small = Mux(swaps, b, a), Mux(swaps, a, b)
    sign, differs = stage.hold_all(large[31], a[31] ^ b[31])
    gap = Mux(swaps, gaps[1], gaps[0])
    distance = stage.hold(Mux(gap[5:].any(), 31, gap[:5]))
    power = stage.hold(_power(large))
    large, small = stage.hold_all(_significand(large), _significand(small))

    # Three bits remain below the result; the lowest of these bits is the sticky bit.
    exact = Cat(Const(0, 31), small) >> distance
    small = stage.hold(Cat(exact[:29].any(), exact[29:55]))
    large, power, sign, differs = (stage.hold(each) for each in (large, power, sign, differs))

    shifted = Cat(Const(0, 3), large)
    total = stage.hold(Mux(differs, shifted - small, shifted + small)[:28])
    limit = stage.hold((Const(1 << 26, 27) >> (power - 1)[:8])[:27])
    power, sign, differs = stage.hold(power), stage.hold(sign), stage.hold(differs)

    left = stage.hold(leading_zeros(Cat(Const(0, 5), total[:27] | limit)))
    sign = stage.hold(sign & ~(differs & (total == 0)))
    total, power = stage.hold(total), stage.hold(power)

    normal = (total << left)[:27]
    has_carry = total[27]
    rounded = stage.hold(Mux(has_carry, Cat(total[:2].any(), total[2:28]), normal))
    exponent = Mux(has_carry, power + 1, Mux(normal[26], power - left, 0))[:8]
    exponent, sign = stage.hold(exponent), stage.hold(sign)

    up = rounded[2] & (rounded[:2].any() | rounded[3])
    finite = (Cat(rounded[3:26], exponent) + up)[:31]
    magnitude = stage.hold(Mux(exponent == 255, _INFINITY, finite))
    sign = stage.hold(sign)
    is_odd, odd = stage.delay(is_odd, LATENCY - 3), stage.delay(odd, LATENCY - 3)
    return stage.hold(Mux(is_odd, odd, Cat(magnitude[:31], sign)))


def _kinds(a: Value, b: Value) -> Value:
    """Return whether ``a`` and ``b`` are non-finite, and whether each is NaN."""
    has_most = [x[23:31] == 255 for x in (a, b)]
    return Cat(*has_most, *(most & x[:23].any() for x, most in zip((a, b), has_most, strict=True)))


def _not_finite(a: Value, b: Value, kinds: Value) -> Value:
    """Return the sum if ``a`` or ``b`` is NaN or infinite."""
    a_is_odd, b_is_odd, a_is_nan, b_is_nan = kinds
    infinite = Mux(a_is_odd, a, b)
    sum_of_numbers = Mux(a_is_odd & b_is_odd & (a[31] ^ b[31]), _INVALID, infinite)
    return Mux(a_is_nan, a | _QUIET, Mux(b_is_nan, b | _QUIET, sum_of_numbers))


def _power(x: Value) -> Value:
    """Return the biased exponent, which is 1 for subnormals."""
    return Cat(x[23] | (x[23:31] == 0), x[24:31])


def _significand(x: Value) -> Value:
    return Cat(x[:23], x[23:31] != 0)


# The engine.


_PARTED = 2
"""The number of words that can wait for the adder and for the host. The same number may be in flight."""


class RingEngine(Circuit):
    """A rank's engine, which all-reduces ``world`` chunks of ``chunk_words`` words in ``host_order``.

    The host's streams carry float32, one packet per chunk; the neighbours' streams carry payloads. Received
    chunks are decompressed and added to local chunks, and the sums are compressed and sent. The rank that
    finishes a chunk decompresses and adopts the payload that it sends. The other ranks forward the payload
    unchanged, so that all ranks have the same bits. Each point on a packet's path counts packets, and
    ``Routes``, derived from the steps of ``collectives.ring``, selects the path, so that packets follow
    without a pause.

    The engine is free of deadlock: an arriving chunk always has room, encoded in one memory and summed in
    another. So no engine waits for its right neighbour to begin. For C words per chunk and N ranks, the
    results are complete after (2 N - 1) C cycles and a latency: N - 1 chunks arrive from the host before the
    last chunk, whose sum is the first of N sums that go to the host. A separate decompressor handles the
    rank's own sum, so that the first decompressor processes a word from the left in every cycle.
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

        # A consumer's tready doesn't depend on its own tvalid; each of two consumers waits for the other.
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
        """Return the compressor's buffered input and output streams. For identity, one stream is both."""
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
            between = stream(width)  # an extra stage, because the lanes are far apart
            registered(m, come.m_axis, between)
            registered(m, between, block.s_axis)
        wiring.connect(m, block.m_axis, go.s_axis)
        return come.s_axis, go.m_axis

    def _decompressor(self, m: Module, name: str) -> tuple[Any, Any]:
        """Return a decompressor's input and output streams. For identity, one stream is both."""
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
        """Connect the float32 streams: the first local packet is encoded, later packets are added to sums.

        Buffers separate adder, adopter, and host, which are far apart. Words from the left wait for room at
        both the adder and the host, because registers then signal the room.
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
    """An adder of ``b`` to the words of a stream, lane by lane.

    It runs in every cycle, so that no signal stalls all registers at once: a word is accepted only if the
    memory of ``depth`` sums has room for its sum. In a large block, the memory uses ``is_apart``.
    """

    def __init__(self, width: int, depth: int, *, is_large: bool = False) -> None:
        self._depth, self._is_large = max(depth, 2 * (1 + LATENCY)), is_large
        super().__init__({**block_ports(width), "b": In(width)})

    def _describe(self, m: Module) -> None:
        come, out = self.s_axis, self.m_axis
        stage = Pipeline(m, Const(1))
        lanes = len(come.tdata) // LANE_BITS
        a, b = stage.hold(come.tdata), stage.hold(self.b)  # LUT RAM output: too slow to compare in one stage
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
    """Return a stream that a buffer connects to ``go``, without combinational paths between them."""
    m.submodules[name] = buffer = SkidBuffer(len(go.tdata))
    m.d.comb += forward(buffer.m_axis, go)
    return buffer.s_axis


def _select(to: Any, condition: Value, one: Any, other: Any) -> list[Any]:
    """Return the statements that drive ``to`` with the words of one of two streams."""
    return [
        getattr(to, name).eq(Mux(condition, getattr(one, name), getattr(other, name)))
        for name in ("tdata", "tkeep", "tlast")
    ]


def _route(m: Module, stream: Any, table: tuple[bool, ...]) -> Signal:
    """Return the register of the current packet's entry in ``table``, which is used repeatedly."""
    route, index = Signal(init=table[0]), Signal(range(len(table)))
    bits = Const(sum(entry << at for at, entry in enumerate(table)), len(table))
    following = Mux(index == len(table) - 1, 0, index + 1)[: len(index)]
    with m.If(stream.tvalid & stream.tready & stream.tlast):
        m.d.sync += [index.eq(following), route.eq(bits.bit_select(following, 1))]
    return route
