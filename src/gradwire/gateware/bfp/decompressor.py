"""The decompressor of ``bfp``: a word of values in every cycle, wherever its mantissas stand."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring

from gradwire.codecs.formats.bfp import NAN_EXPONENT, Bfp
from gradwire.gateware.bfp.cutter import BfpCutter
from gradwire.gateware.bfp.format import Layout
from gradwire.gateware.queues import counted_memory
from gradwire.gateware.stream import Pipeline, block_ports, leading_zeros, shift_right_bytes, stream

_COARSE = 4
"""Mantissas are moved to the bottom by multiples of this many bytes first, then by the rest."""
_LATENCY = 6
"""Cycles from the cutter to the values."""
_QUIET_NAN = 0x7FC0_0000


class BfpDecompressor(wiring.Component):
    """The payload of ``codec`` in, float32 out, packet by packet.

    A payload does not say how many values its last block has, so that whole blocks come out, 0 for padding;
    the frame has the count. A packet that ends within a block ends there, with the words that it completes.

    Behind the ``BfpCutter``, two stages move a word's mantissas to the bottom, one takes the exponent off
    that stands before a block's first ones, and three rebuild the values.
    """

    def __init__(self, codec: Bfp, width: int = 256) -> None:
        self._layout = Layout.of(codec, width)
        super().__init__(block_ports(width))

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
        out, layout = self.m_axis, self._layout
        size, most = len(out.tkeep), layout.nbytes + 1
        m.submodules.cutter = cutter = BfpCutter(layout, len(out.tdata))
        wiring.connect(m, wiring.flipped(self.s_axis), cutter.s_axis)
        rebuilt = stream(len(out.tdata))
        leaving, has_room = counted_memory(m, "leaving", rebuilt, cutter.valid & cutter.ready)
        wiring.connect(m, leaving, wiring.flipped(out))
        m.d.comb += cutter.ready.eq(has_room)
        stage = Pipeline(m, Const(1))

        fine, opens = stage.hold(cutter.place[:2]), stage.hold(cutter.opens)
        coarse = Cat(Const(0, 5), cutter.place[2:])
        found = stage.hold((cutter.window >> coarse)[: 8 * (most + _COARSE - 1)])
        found, opens = stage.hold(shift_right_bytes(found, fine, most)), stage.hold(opens)
        exponent = Signal(8)
        shared = Mux(opens, found[:8], exponent)
        m.d.sync += exponent.eq(shared)
        mantissas = stage.hold(Mux(opens, found[8:], found)[: 8 * layout.nbytes])

        shared = stage.hold(shared)
        bits = layout.mantissa_bits + 1
        values = [
            _value(stage, mantissas.word_select(lane, bits), shared, layout.mantissa_bits)
            for lane in range(layout.lanes)
        ]
        valid, last, keeps = cutter.valid & cutter.ready, cutter.last, ~cutter.is_null
        for _ in range(_LATENCY):
            valid, last, keeps = stage.hold(valid, resets=True), stage.hold(last), stage.hold(keeps)
        m.d.comb += [
            rebuilt.tdata.eq(Cat(values)),
            rebuilt.tkeep.eq(keeps.replicate(size)),
            rebuilt.tlast.eq(last),
            rebuilt.tvalid.eq(valid),
        ]
        return m


def _value(stage: Pipeline, mantissa: Value, shared: Value, bits: int) -> Value:
    """Return the register of a float32, three stages after its mantissa: mantissa * 2^(shared - 126 - bits).

    A mantissa is an integer, whose highest one gives the exponent. Shared exponents below 32, which no
    encoder writes, may give subnormals: their mantissas are shifted less.
    """
    sign, shared, is_far = stage.hold(mantissa[-1]), stage.hold(shared), stage.hold(shared[4:].any())
    magnitude = stage.hold(Mux(mantissa[-1], -mantissa, mantissa)[: bits + 1])

    found = leading_zeros(Cat(Const(0, 15 - bits), magnitude))
    zeros, is_normal = stage.hold(found), stage.hold(is_far | (shared[:4] >= found))
    sign, is_zero = stage.hold(sign), stage.hold(magnitude == 0)
    magnitude, shared = stage.hold(magnitude), stage.hold(shared)

    left = (23 - bits + Mux(is_normal, zeros, shared[:4]))[:5]
    exponent = Mux(is_normal, shared + 1 - zeros, 0)[:8]
    finite = Cat(Mux(is_zero | (shared == 0), 0, Cat((magnitude << left)[:23], exponent)), sign & ~is_zero)
    return stage.hold(Mux(shared == NAN_EXPONENT, _QUIET_NAN, finite))
