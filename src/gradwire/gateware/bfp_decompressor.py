"""The decompressor of ``bfp``: a word of values in every cycle, from a buffer that each word refills."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring

from gradwire.codecs.bfp import NAN_EXPONENT, Bfp
from gradwire.gateware.bfp_format import Layout
from gradwire.gateware.stream import (
    Pipeline,
    block_ports,
    count_kept,
    leading_zeros,
    shift_left_bytes,
)

_QUIET_NAN = 0x7FC0_0000


class BfpDecompressor(wiring.Component):
    """The payload of ``codec`` in, float32 out, packet by packet.

    A payload does not say how many values its last block has, so that whole blocks come out, 0 for padding;
    the frame has the count. A packet that ends within a block ends there, with the words that it completes.
    """

    def __init__(self, codec: Bfp, width: int = 256) -> None:
        self._layout = Layout.of(codec, width)
        super().__init__(block_ports(width))

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
        come, out, layout = self.s_axis, self.m_axis, self._layout
        size, most = len(come.tkeep), layout.nbytes + 1
        ready, takes = Signal(), Signal()
        m.d.comb += [ready.eq(~out.tvalid | out.tready), takes.eq(come.tready & come.tvalid)]
        stage = Pipeline(m, ready)

        held, count, ending = Signal(8 * (most - 1 + size)), Signal(range(most + size)), Signal()
        index = Signal(range(max(2, layout.words)))
        is_first = index == 0
        wanted = Mux(is_first, most, layout.nbytes)
        has_word = count >= wanted
        is_null = ending & ~has_word
        fires = ready & (has_word | is_null)
        rest = Signal.like(count)
        closes = index == layout.words - 1
        is_last = Signal()
        m.d.comb += [
            is_last.eq(ending & (is_null | (count < wanted + Mux(closes, most, layout.nbytes)))),
            rest.eq(Mux(fires, Mux(is_last, 0, count - wanted), count)),
            come.tready.eq((~ending | (fires & is_last)) & (rest < most)),
        ]
        moved = Mux(is_first, held >> 8 * most, held >> 8 * layout.nbytes)
        kept = Mux(fires, Mux(is_last, 0, moved), held)
        with m.If(fires | takes):
            m.d.sync += [
                held.eq(kept | Mux(takes, shift_left_bytes(come.tdata, rest, most - 1 + size), 0)),
                count.eq(rest + Mux(takes, count_kept(come.tkeep), 0)),
                ending.eq(Mux(takes, come.tlast, ending & ~(fires & is_last))),
            ]
        exponent = Signal(8)
        with m.If(fires):
            m.d.sync += [
                index.eq(Mux(closes | is_last, 0, index + 1)),
                exponent.eq(Mux(is_first, held[:8], exponent)),
            ]

        mantissas = stage.hold(Mux(is_first, held[8 : 8 * most], held)[: 8 * layout.nbytes])
        shared = stage.hold(Mux(is_first, held[:8], exponent))
        keeps, last = stage.hold(~is_null), stage.hold(is_last)
        valid = stage.hold(fires, resets=True)
        bits = layout.mantissa_bits + 1
        values = [
            _value(stage, mantissas.word_select(lane, bits), shared, layout.mantissa_bits)
            for lane in range(layout.lanes)
        ]
        for _ in range(2):
            valid, last, keeps = stage.hold(valid, resets=True), stage.hold(last), stage.hold(keeps)
        m.d.comb += [
            out.tdata.eq(Cat(values)),
            out.tkeep.eq(keeps.replicate(size)),
            out.tlast.eq(last),
            out.tvalid.eq(valid),
        ]
        return m


def _value(stage: Pipeline, mantissa: Value, shared: Value, bits: int) -> Value:
    """Return the register of a float32, two stages after its mantissa: mantissa * 2^(shared - 126 - bits).

    A mantissa is an integer, whose highest one gives the exponent. Shared exponents below 32, which no
    encoder writes, may give subnormals: their mantissas are shifted less.
    """
    sign = stage.hold(mantissa[-1])
    magnitude = Mux(mantissa[-1], -mantissa, mantissa)[: bits + 1]
    zeros = stage.hold(leading_zeros(Cat(Const(0, 15 - bits), magnitude)))
    is_zero = stage.hold(magnitude == 0)
    magnitude = stage.hold(magnitude)
    shared = stage.hold(shared)

    exponent = (shared + 1 - zeros)[:10].as_signed()
    is_normal = exponent > 0
    left = Mux(is_normal, 23 - bits + zeros, 23 - bits + shared)[:5]
    value = Cat((magnitude << left)[:23], Mux(is_normal, exponent, 0)[:8])
    finite = Cat(Mux(is_zero | (shared == 0), 0, value), sign & ~is_zero)
    return stage.hold(Mux(shared == NAN_EXPONENT, _QUIET_NAN, finite))
