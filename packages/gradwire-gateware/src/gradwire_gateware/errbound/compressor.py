"""The compressor of ``errbound``: a chunk's data wait until all its tags have left."""

from __future__ import annotations

from functools import reduce

from amaranth import Cat, Const, Module, Mux, Signal, Value

from gradwire.codecs import ErrBound
from gradwire_gateware import LANE_BITS
from gradwire_gateware.errbound import relative
from gradwire_gateware.errbound.share import Steps
from gradwire_gateware.inceptionn.compressor import joined, size_of
from gradwire_gateware.packer import Packer
from gradwire_gateware.sections import join, store
from gradwire_gateware.stream import Circuit, Pipeline, block_ports, count_kept

_QUARTET = 4
"""The number of values whose tags share a byte."""
_UNLIMITED = 239
"""The largest biased exponent of a bound at which no code of two bytes overflows."""


class ErrBoundCompressor(Circuit):
    """A compressor of float32 packets to payloads of ``codec``; a packet longer than a chunk gives several.

    Stages: the shift distance; the value in steps; rounding; the size class; and three or four that join the
    lanes. Tags and data are packed separately. They wait in memories for two chunks of ``chunk_words`` words,
    so that one chunk enters while the previous one leaves, its tags first. With relative bounds, words first
    wait for their block's bound, and the bounds leave before the tags.
    """

    def __init__(self, codec: ErrBound, width: int = 256, *, chunk_words: int = 512) -> None:
        self._codec, self._chunk_words = codec, chunk_words
        if codec.relative is not None:
            relative.check(codec, chunk_words * width // LANE_BITS)
        super().__init__(block_ports(width))

    def _describe(self, m: Module) -> None:
        width = len(self.s_axis.tdata)
        lanes = width // LANE_BITS
        m.submodules.tags = tag_packer = Packer(width, lanes // _QUARTET, lanes // _QUARTET)
        m.submodules.data = data_packer = Packer(width, width // 8)
        packers = [tag_packer, data_packer]
        if self._codec.relative is not None:
            m.submodules.exponents = exponent_packer = Packer(width, 1)
            packers.insert(0, exponent_packer)
        ready = reduce(Value.__and__, (packer.ready for packer in packers))
        stage = Pipeline(m, ready)
        nbytes = [self._chunk_words * lanes // _QUARTET, self._chunk_words * width // 8]
        if self._codec.relative is not None:
            nbytes.insert(0, -(-self._chunk_words * lanes // (self._codec.block or 65536)))
        more = 0 if self._codec.relative is None else relative.ON_THEIR_WAY
        sections, has_room = store(m, packers, [-(-most * 8 // width) for most in nbytes], more)
        word = self._words(m, ready, has_room)

        steps = Steps.of(self._codec) if self._codec.relative is None else _steps_of(stage, word.bound)
        coded = [_coded(stage, steps, word.lanes.word_select(lane, LANE_BITS)) for lane in range(lanes)]
        tags: Value = Cat(tag for tag, _ in coded)
        quartets = ((word.count + _QUARTET - 1) >> 2)[:3]
        valid, marks = word.valid, Cat(word.ends, quartets, word.needs_bound, word.bound)
        valid, marks = stage.delay(valid, 4, resets=True), stage.delay(marks, 4)
        pieces = [(bits, size_of(m, tag)) for tag, bits in coded]
        while len(pieces) > 1:
            pieces = joined(stage, pieces)
            valid, marks, tags = stage.hold(valid, resets=True), stage.hold(marks), stage.hold(tags)
        groups = [(tags, marks[1:4]), pieces[0]]
        if self._codec.relative is not None:
            has_bound, bound = marks[4], marks[5:]
            groups.insert(0, (Mux(has_bound, bound, 0), has_bound))
        for packer, (data, count) in zip(packers, groups, strict=True):
            m.d.comb += packer.take(data, count, marks[0], valid & ready)
        join(m, sections, self.m_axis)

    def _words(self, m: Module, ready: Value, has_room: Value) -> relative.Word:
        """Return the input words, and for a relative codec their blocks' bounds."""
        come = self.s_axis
        if self._codec.relative is not None:
            return relative.waiting(m, self._codec, come, has_room, ready, self._chunk_words)
        m.d.comb += come.tready.eq(ready & has_room)
        index = Signal(range(self._chunk_words))
        ends = come.tlast | (index == self._chunk_words - 1)
        with m.If(come.tvalid & come.tready):
            m.d.sync += index.eq(Mux(ends, 0, index + 1))
        keep, kept = relative.kept_lanes(m, come)
        none = Const(0, 0)
        return relative.Word(kept, count_kept(keep), ends, none, none, come.tvalid & has_room)


def _steps_of(stage: Pipeline, bound: Value) -> Steps:
    """Return a bound's steps, with limits in registers three stages after its exponent."""
    cut = stage.hold(Mux(bound > _UNLIMITED, bound - _UNLIMITED, 0)[:4])
    limit = stage.hold(stage.hold(Const(32767, 15) >> cut))
    return Steps(bound, (limit[:7], limit))


def _coded(stage: Pipeline, steps: Steps, x: Value) -> tuple[Value, Value]:
    """Return the registers of a float32's tag and encoded bits, four stages later.

    A value of exponent ``E + 1``, where E is the bound's exponent, is at least one step. It is shifted so
    that 15 bits are whole steps; values below half a step become 0.
    """
    exponent = x[23:31]
    above = exponent - (steps.exponent + 1)  # the position of the highest bit among whole steps
    is_large = stage.hold((exponent > steps.exponent + 15) | (exponent == 255))
    is_small = stage.hold(exponent < steps.exponent)
    distance = stage.hold((14 - above)[:4])
    significand, sign, raw = stage.hold(Cat(x[:23], Const(1, 1))), stage.hold(x[31]), stage.hold(x)

    # With a distance of 0, the highest bit is 2^14 steps; with 15, half a step.
    exact = (Cat(Const(0, 15), significand) >> distance)[:39]
    whole, half, sticky = stage.hold(exact[24:39]), stage.hold(exact[23]), stage.hold(exact[:23].any())
    is_large, is_small = stage.hold(is_large), stage.hold(is_small)
    sign, raw = stage.hold(sign), stage.hold(raw)

    magnitude = stage.hold(Mux(is_small, 0, (whole + (half & (sticky | whole[0])))[:16]))
    is_large, sign, raw = stage.hold(is_large), stage.hold(sign), stage.hold(raw)

    is_raw, is_two = is_large | _exceeds(magnitude, steps.limits[1]), _exceeds(magnitude, steps.limits[0])
    code = Mux(sign, -magnitude, magnitude)[:16]
    tag = stage.hold(Mux(is_raw, 3, Mux(is_two, 2, magnitude != 0))[:2])
    bits = Mux(is_raw, raw, Mux(is_two, code, code[:8]))
    return tag, stage.hold(bits)


def _exceeds(magnitude: Value, limit: int | Value) -> Value:
    """Return whether ``magnitude`` exceeds ``limit``, a power of two minus one."""
    low = Value.cast(limit)
    return (magnitude & ~Cat(low, Const(0, len(magnitude) - len(low)))).any()
