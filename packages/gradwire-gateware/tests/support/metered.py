"""Frames past a simulated meter."""

from __future__ import annotations

import random
from typing import Any

from amaranth.sim import Simulator

from support.axi import words


def metered(meter: Any, frames: list[tuple[bytes, int, int]]) -> list[tuple[int, bool]]:
    """Return the result for each frame, its ``end`` and its ``headers``, and whether its packet was whole."""
    found: list[tuple[int, bool]] = []
    draw = random.Random(1)

    async def watch(ctx: Any) -> None:
        while len(found) < len(frames):
            _, _, done, result, is_whole = await ctx.tick().sample(meter.done, meter.result, meter.is_whole)
            if done:
                found.append((result, bool(is_whole)))

    async def pass_by(ctx: Any) -> None:
        for frame, end, headers in frames:
            for name, value in (("end", end), ("headers", headers)):
                ctx.set(getattr(meter, name), value)
            for word in words(frame, len(meter.data)):
                for name, value in zip(("data", "keep", "last"), word, strict=True):
                    ctx.set(getattr(meter, name), value)
                moves = False
                while not moves:
                    moves = draw.random() < 0.7
                    ctx.set(meter.moves, moves)
                    await ctx.tick()
        ctx.set(meter.moves, 0)

    simulator = Simulator(meter)
    simulator.add_clock(1e-8)
    simulator.add_process(pass_by)
    simulator.add_testbench(watch)
    simulator.run()
    return found
