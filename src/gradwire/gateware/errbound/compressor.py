"""The compressor of ``errbound``: a chunk's data waits until all its tags have left."""

from __future__ import annotations

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring

from gradwire.codecs import ErrBound
from gradwire.gateware.errbound.steps import Steps
from gradwire.gateware.inceptionn_compressor import joined, size_of
from gradwire.gateware.nic.queues import memory
from gradwire.gateware.packer import Packer
from gradwire.gateware.stream import Pipeline, block_ports, count_kept
from gradwire.gateware.words import LANE_BITS

_QUARTET = 4
"""The values whose tags are one byte."""


class ErrBoundCompressor(wiring.Component):
    """Float32 in, the payload of ``codec`` out, packet by packet; a longer one is cut into several chunks.

    Stages: the distance to the steps; the value in steps; that rounded; its class; three or four that join
    the lanes. Tags and data are packed for themselves. They wait in memories for two chunks of
    ``chunk_words`` words, so that one comes in while the one before leaves, its tags first.
    """

    def __init__(self, codec: ErrBound, width: int = 256, *, chunk_words: int = 512) -> None:
        self._steps, self._chunk_words = Steps.of(codec), chunk_words
        super().__init__(block_ports(width))

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
        come, width = self.s_axis, len(self.s_axis.tdata)
        lanes = width // LANE_BITS
        m.submodules.tags = tag_packer = Packer(width, lanes // _QUARTET)
        m.submodules.data = data_packer = Packer(width, width // 8)
        stage = Pipeline(m, tag_packer.ready & data_packer.ready)
        m.d.comb += come.tready.eq(tag_packer.ready & data_packer.ready)
        index = Signal(range(self._chunk_words))
        closes = come.tlast | (index == self._chunk_words - 1)
        with m.If(come.tvalid & come.tready):
            m.d.sync += index.eq(Mux(closes, 0, index + 1))

        coded = [
            _coded(stage, self._steps, Mux(come.tkeep[4 * lane], come.tdata.word_select(lane, LANE_BITS), 0))
            for lane in range(lanes)
        ]
        tags: Value = Cat(tag for tag, _ in coded)
        quartets: Value = sum(
            (come.tkeep[4 * _QUARTET * at] for at in range(lanes // _QUARTET)), Const(0, 1)
        )[:3]
        valid, last = come.tvalid, closes
        for _ in range(4):
            valid, last, quartets = stage.hold(valid, resets=True), stage.hold(last), stage.hold(quartets)
        pieces = [(bits, size_of(m, tag)) for tag, bits in coded]
        while len(pieces) > 1:
            pieces = joined(stage, pieces)
            valid, last, quartets = stage.hold(valid, resets=True), stage.hold(last), stage.hold(quartets)
            tags = stage.hold(tags)
        m.d.comb += [
            tag_packer.data.eq(tags),
            tag_packer.count.eq(quartets),
            tag_packer.last.eq(last),
            tag_packer.valid.eq(valid & data_packer.ready),
            data_packer.data.eq(pieces[0][0]),
            data_packer.count.eq(pieces[0][1]),
            data_packer.last.eq(last),
            data_packer.valid.eq(valid & tag_packer.ready),
        ]
        depth = 2 * self._chunk_words
        tag_words = memory(m, "tags_wait", tag_packer.m_axis, depth // (width // (2 * lanes)) + 8)
        self._put_together(m, tag_words, memory(m, "data_wait", data_packer.m_axis, depth + 8))
        return m

    def _put_together(self, m: Module, tags: Any, data: Any) -> None:
        """Send the tags of a chunk, and then its data, without a gap."""
        width = len(self.s_axis.tdata)
        m.submodules.packer = packer = Packer(width, width // 8)
        stage = Pipeline(m, packer.ready)
        is_data = Signal()
        moves = packer.ready & Mux(is_data, data.tvalid, tags.tvalid)
        m.d.comb += [tags.tready.eq(packer.ready & ~is_data), data.tready.eq(packer.ready & is_data)]
        with m.If(moves):
            m.d.sync += is_data.eq(Mux(is_data, ~data.tlast, tags.tlast))
        m.d.comb += [
            packer.data.eq(stage.hold(Mux(is_data, data.tdata, tags.tdata))),
            packer.count.eq(stage.hold(count_kept(Mux(is_data, data.tkeep, tags.tkeep)))),
            packer.last.eq(stage.hold(is_data & data.tlast)),
            packer.valid.eq(stage.hold(moves, resets=True)),
        ]
        wiring.connect(m, packer.m_axis, wiring.flipped(self.m_axis))


def _coded(stage: Pipeline, steps: Steps, x: Value) -> tuple[Value, Value]:
    """Return the registers of the tag of a float32 and of its bits, four stages after it.

    A value of exponent ``E + 1``, where E is that of the bound, is one step or more. It is shifted so that 15
    bits are whole steps; below half a step, nothing is left.
    """
    exponent = x[23:31]
    above = exponent - (steps.exponent + 1)  # the position of the highest bit among whole steps
    is_large = stage.hold((exponent > steps.exponent + 15) | (exponent == 255))
    is_small = stage.hold(exponent < steps.exponent)
    distance = stage.hold((14 - above)[:4])
    significand, sign, raw = stage.hold(Cat(x[:23], Const(1, 1))), stage.hold(x[31]), stage.hold(x)

    # With a distance of 0, the highest bit stands for 2^14 steps; with 15, for half a step.
    exact = (Cat(Const(0, 15), significand) >> distance)[:39]
    whole, half, sticky = stage.hold(exact[24:39]), stage.hold(exact[23]), stage.hold(exact[:23].any())
    is_large, is_small = stage.hold(is_large), stage.hold(is_small)
    sign, raw = stage.hold(sign), stage.hold(raw)

    magnitude = stage.hold(Mux(is_small, 0, (whole + (half & (sticky | whole[0])))[:16]))
    is_large, sign, raw = stage.hold(is_large), stage.hold(sign), stage.hold(raw)

    is_raw = is_large | (magnitude > steps.limits[1])
    is_two = magnitude > steps.limits[0]
    code = Mux(sign, -magnitude, magnitude)[:16]
    tag = stage.hold(Mux(is_raw, 3, Mux(is_two, 2, magnitude != 0))[:2])
    bits = Mux(is_raw, raw, Mux(is_two, code, code[:8]))
    return tag, stage.hold(Mux(is_raw | (magnitude != 0), bits, 0)[:LANE_BITS])
