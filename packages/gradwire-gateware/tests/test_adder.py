import os
from typing import Any

import numpy as np
from amaranth.sim import Simulator

from gradwire_gateware.ring import LATENCY, FloatAdder
from support.hardware_chunks import EDGES

PAIRS = int(os.environ.get("GRADWIRE_GATEWARE_VALUES", "6000"))


def simulated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    adder = FloatAdder()
    found: list[int] = []

    async def bench(ctx: Any) -> None:
        given = list(zip(a.tolist(), b.tolist(), strict=True)) + [(0, 0)] * LATENCY
        for at, (one, other) in enumerate(given):
            ctx.set(adder.a, one)
            ctx.set(adder.b, other)
            if at % 7 == 3:
                ctx.set(adder.enable, 0)
                await ctx.tick().repeat(2)
            ctx.set(adder.enable, 1)
            found.append((await ctx.tick().sample(adder.sum))[2])

    simulator = Simulator(adder)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    return np.array(found[LATENCY:], dtype=np.uint32)


def expected(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        total = (a.view(np.float32) + b.view(np.float32)).view(np.uint32)
    quiet = np.uint32(0x0040_0000)
    a_is_nan, b_is_nan = np.isnan(a.view(np.float32)), np.isnan(b.view(np.float32))
    invalid = np.isnan(total.view(np.float32)) & ~a_is_nan & ~b_is_nan
    of_nan = np.where(
        a_is_nan, a | quiet, b | quiet
    )  # of two NaN a CPU may keep either: the hardware the first
    total = np.where(a_is_nan | b_is_nan, of_nan, total)
    return np.where(invalid, np.uint32(0xFFC0_0000), total)


def agree(a: np.ndarray, b: np.ndarray) -> None:
    found, wanted = simulated(a, b), expected(a, b)
    wrong = np.flatnonzero(found != wanted)
    assert not len(wrong), [(hex(a[at]), hex(b[at]), hex(found[at]), hex(wanted[at])) for at in wrong[:5]]


def test_every_pair_of_edges_adds_as_on_the_cpu() -> None:
    edges = np.array(
        [*EDGES, 0x0000_0002, 0x0080_0001, 0x8080_0000, 0x3380_0000, 0x3300_0000, 0xB300_0001], np.uint32
    )
    a, b = np.meshgrid(edges, edges)
    agree(a.ravel().copy(), b.ravel().copy())


def test_random_pairs_add_as_on_the_cpu() -> None:
    draw = np.random.default_rng(0)
    a = draw.integers(0, 1 << 32, PAIRS, np.uint64).astype(np.uint32)
    b = draw.integers(0, 1 << 32, PAIRS, np.uint64).astype(np.uint32)
    near = draw.integers(-27, 28, PAIRS) + ((a >> 23) & 255).astype(np.int64)  # so that they overlap
    near = (np.clip(near, 0, 255).astype(np.uint32) << 23) | (b & 0x807F_FFFF)
    tiny = draw.integers(0, 3, PAIRS).astype(np.uint32) << 23
    a[: PAIRS // 4] = (a & 0x807F_FFFF | tiny)[: PAIRS // 4]
    b = np.where(np.arange(PAIRS) % 8 != 0, near, b)
    b[: PAIRS // 4] = ((b & 0x807F_FFFF) | tiny[::-1])[: PAIRS // 4]
    b[PAIRS // 2 : PAIRS * 3 // 4] = (a ^ 0x8000_0000 ^ (b & 0xFF))[PAIRS // 2 : PAIRS * 3 // 4]  # cancel
    agree(a, b)
