import random
from typing import Any

import pytest
import torch
from amaranth import Const, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from gradwire.codecs import Quantize
from gradwire_gateware.quantize.code import SCALE_BITS, scale_latency, scale_of
from gradwire_gateware.stream import Pipeline
from support.hardware_chunks import VALUES, of_bits, payload

EDGES = (0, 1, 2, 0x7FFFFF, 0x7FFFFE, 0x7E0000, 0x7DFFFF, 0x7E0001, 0x600000, 0x5FFFFF)
"""Mantissas around those of the largest codes, at which the exponent of a quotient changes."""


class Scales(wiring.Component):  # type: ignore[misc]
    """The scale of a peak in every cycle."""

    def __init__(self, codec: Quantize) -> None:
        self._codec = codec
        super().__init__({"peak": In(31), "scale": Out(SCALE_BITS), "inverse": Out(31)})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        scale, inverse = scale_of(m, Pipeline(m, Const(1)), self._codec, self.peak)
        m.d.comb += [self.scale.eq(scale), self.inverse.eq(inverse)]
        return m


def peaks() -> list[int]:
    draw = random.Random(1)
    some = [exponent << 23 | draw.choice(EDGES) for exponent in range(0, 256, 5)]
    return some + [27 << 23, (27 << 23) - 1, 0x7F7F_FFFF] + [draw.randrange(1 << 31) for _ in range(VALUES)]


@pytest.mark.parametrize("bits", [8, 4])
def test_scales_and_their_inverses_are_the_cpus(bits: int) -> None:
    codec, given = Quantize(bits), peaks()
    block, found = Scales(codec), []

    async def drive(ctx: Any) -> None:
        for peak in given + [0] * scale_latency(codec):
            ctx.set(block.peak, peak)
            _, _, *pair = await ctx.tick().sample(block.scale, block.inverse)
            found.append(tuple(pair))

    simulator = Simulator(block)
    simulator.add_clock(1e-8)
    simulator.add_testbench(drive)
    simulator.run()
    for peak, (scale, inverse) in zip(given, found[scale_latency(codec) :], strict=True):
        wanted = payload(codec, of_bits([peak]))[:4]
        assert (scale << 8).to_bytes(4, "little") == wanted, hex(peak)
        of_scale = of_bits([scale << 8])
        has_codes = bool(of_scale > 0)
        expected = (torch.ones(1) / of_scale).view(torch.int32).item() if has_codes else 0
        assert inverse == expected, hex(peak)
