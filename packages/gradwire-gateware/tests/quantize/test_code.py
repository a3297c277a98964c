import random
from typing import Any

import numpy as np
import pytest
from amaranth import Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from gradwire.codecs import Quantize
from gradwire_gateware.quantize.code import CODE_LATENCY, VALUE_LATENCY, code_of, multiplication, value_of
from gradwire_gateware.stream import Pipeline
from support.hardware_chunks import VALUES

Pairs = list[tuple[int, int]]


class Lane(wiring.Component):  # type: ignore[misc]
    """A float32 and an inverse in, a code out; or a code and a scale in, a float32 out."""

    def __init__(self, bits: int, *, encodes: bool) -> None:
        self._bits, self._encodes = bits, encodes
        super().__init__({"a": In(32 if encodes else bits), "b": In(31), "out": Out(bits if encodes else 32)})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        stage = Pipeline(m, Const(1))
        made = (
            code_of(stage, self.a, self.b, self._bits)
            if self._encodes
            else value_of(m, stage, self.a, self.b)
        )
        m.d.comb += self.out.eq(made)
        return m

    def passed(self, pairs: Pairs) -> list[int]:
        """Return what comes out for each pair."""
        latency = CODE_LATENCY if self._encodes else VALUE_LATENCY
        found: list[int] = []

        async def drive(ctx: Any) -> None:
            for a, b in pairs + [(0, 0)] * latency:
                ctx.set(self.a, a)
                ctx.set(self.b, b)
                found.append((await ctx.tick().sample(self.out))[2])

        simulator = Simulator(self)
        simulator.add_clock(1e-8)
        simulator.add_testbench(drive)
        simulator.run()
        return found[latency:]


@pytest.mark.parametrize("bits", [3, 7, 24])
def test_a_product_of_parts_is_exact(bits: int) -> None:
    draw = random.Random(bits)
    factors = [
        *range(2 ** min(bits, 7)),
        2**bits - 1,
        1 << bits - 1,
        *(draw.getrandbits(bits) for _ in range(300)),
    ]
    pairs = [(a, b) for a in factors for b in (2**24 - 1, draw.getrandbits(24) | 1 << draw.randrange(24))]
    m, a, b, out = Module(), Signal(bits), Signal(24), Signal(bits + 24)
    m.d.comb += out.eq(multiplication(Pipeline(m, Const(1)), a, b))
    found = []

    async def drive(ctx: Any) -> None:
        for left, right in [*pairs, (0, 0), (0, 0)]:
            ctx.set(a, left)
            ctx.set(b, right)
            found.append((await ctx.tick().sample(out))[2])

    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_testbench(drive)
    simulator.run()
    assert found[2:] == [left * right for left, right in pairs]


def bits_of(value: np.float32) -> int:
    return int(value.view(np.uint32))


def around_halves(bits: int) -> Pairs:
    """Return floats around those between two codes, with inverses of the scales that an encoder writes."""
    draw = random.Random(bits)
    pairs: Pairs = []
    while len(pairs) < 2 * VALUES:
        scale = np.uint32(draw.randrange(30, 200) << 23 | draw.randrange(1 << 15) << 8).view(np.float32)
        inverse = np.float32(1) / scale
        half = np.float32(draw.randrange(Quantize(bits).largest_code) + 0.5) * scale
        x = bits_of(half) + draw.randint(-3, 3) | draw.getrandbits(1) << 31
        pairs.append((x, bits_of(inverse)))
    return pairs


@pytest.mark.parametrize("bits", [8, 4])
def test_codes_are_rounded_as_by_the_cpu(bits: int) -> None:
    pairs = around_halves(bits)
    x, inverse = np.array(pairs, dtype=np.uint32).view(np.float32).T
    wanted = np.rint(x * inverse).astype(int) & (2**bits - 1)
    assert Lane(bits, encodes=True).passed(pairs) == wanted.tolist()


@pytest.mark.parametrize("bits", [8, 4])
def test_values_are_rounded_as_by_the_cpu(bits: int) -> None:
    draw = random.Random(bits)
    largest = Quantize(bits).largest_code
    exponents = (*range(4), 100, *range(246, 255))
    pairs = [
        (draw.randint(-largest, largest), draw.choice(exponents) << 23 | draw.getrandbits(23))
        for _ in range(2 * VALUES)
    ]
    codes = np.array([code for code, _ in pairs], dtype=np.float32)
    scales = np.array([scale for _, scale in pairs], dtype=np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        wanted = (codes * scales).view(np.uint32)
    found = Lane(bits, encodes=False).passed([(code & (2**bits - 1), scale) for code, scale in pairs])
    assert found == wanted.tolist()
