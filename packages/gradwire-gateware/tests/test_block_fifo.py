"""The queue in block RAM against Amaranth's, cycle by cycle."""

from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth import Module
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.sim import Simulator

from gradwire_gateware.queues import BlockFIFO
from support.fifo_turns import turns


@pytest.mark.parametrize("depth", [2, 3, 4, 5, 16, 17, 31])
@pytest.mark.parametrize("comes", [0.2, 0.9])
@pytest.mark.parametrize("goes", [0.2, 0.9])
def test_it_does_in_each_cycle_what_amaranth_s_does(depth: int, comes: float, goes: float) -> None:
    m = Module()
    m.submodules.fifo = fifo = BlockFIFO(width=12, depth=depth)
    m.submodules.other = other = SyncFIFOBuffered(width=12, depth=depth)
    draw, passed, was_full = random.Random(depth), 0, False

    async def bench(ctx: Any) -> None:
        nonlocal passed, was_full
        async for word, _, reads in turns(ctx, [fifo, other], draw, comes, goes):
            for name in ("w_rdy", "r_rdy", "level", "w_level", "r_level"):
                assert ctx.get(getattr(fifo, name)) == ctx.get(getattr(other, name)), (word, name)
            if ctx.get(other.r_rdy):
                assert ctx.get(fifo.r_data) == ctx.get(other.r_data)
                passed += reads
            was_full |= not ctx.get(other.w_rdy)

    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert passed > 20
    assert was_full or comes <= goes
