"""The queue in LUT RAM against a deque, cycle by cycle."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from amaranth import Module
from amaranth.sim import Simulator

from gradwire_gateware.stream import LutFIFO
from support.fifo_turns import turns


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 15, 16, 17, 31])
@pytest.mark.parametrize("comes", [0.2, 0.9])
@pytest.mark.parametrize("goes", [0.2, 0.9])
def test_it_holds_what_came_in_order_and_says_how_much(depth: int, comes: float, goes: float) -> None:
    m = Module()
    m.submodules.fifo = fifo = LutFIFO(width=12, depth=depth)
    draw, held, passed = random.Random(depth), deque[int](), 0

    async def bench(ctx: Any) -> None:
        nonlocal passed
        async for word, writes, reads in turns(ctx, [fifo], draw, comes, goes):
            assert ctx.get(fifo.level) == len(held)
            assert ctx.get(fifo.w_rdy) == (len(held) < depth)
            assert ctx.get(fifo.r_rdy) == (len(held) > 0)
            if held:
                assert ctx.get(fifo.r_data) == held[0]
            has_room = len(held) < depth
            if reads and held:
                held.popleft()
                passed += 1
            if writes and has_room:
                held.append(word)

    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert passed > 20
