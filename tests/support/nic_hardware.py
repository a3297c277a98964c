"""Frames through a simulated card."""

from __future__ import annotations

from typing import Any

from amaranth.sim import Simulator

from support.axi import Run, consumed, produced
from support.nic_frames import tcp_frame


async def open_flow(ctx: Any, card: Any, first: int, index: int = 3) -> None:
    """Write the connection of ``tcp_frame`` into a card's table."""
    frame = tcp_frame(b"")
    for name, begin in (("source", 26), ("destination", 30), ("ports", 34)):
        ctx.set(getattr(card, f"flow_{name}"), int.from_bytes(frame[begin : begin + 4], "little"))
    for name, value in (("index", index), ("first", first % 4), ("open", 1), ("write", 1)):
        ctx.set(getattr(card, f"flow_{name}"), value)
    await ctx.tick()
    ctx.set(card.flow_write, 0)


def handled(card: Any, frames: list[bytes], wanted: int, stalls: str, first: int | None = None) -> Run:
    """Return what leaves a transmitter whose connection begins at ``first``, or a receiver."""
    run = Run()
    simulator = Simulator(card)
    simulator.add_clock(1e-8)
    send = produced(card.s_axis, frames, stalls, run)

    async def begin(ctx: Any) -> None:
        if first is not None:
            await open_flow(ctx, card, first)
        await send(ctx)

    simulator.add_process(begin)
    simulator.add_testbench(consumed(card.m_axis, wanted, stalls, run))
    simulator.run()
    return run
