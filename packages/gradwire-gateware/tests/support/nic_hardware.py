"""Frames through a simulated card."""

from __future__ import annotations

from typing import Any

from support.axi import Bench, Run, consumed, produced
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


def handled(on: Bench, frames: list[bytes], wanted: int, stalls: str, first: int | None = None) -> Run:
    """Return what leaves a transmitter whose connection begins at ``first``, or a receiver."""
    run = Run()
    send = produced(on.block.s_axis, frames, stalls, run)

    async def begin(ctx: Any) -> None:
        if first is not None:
            await open_flow(ctx, on.block, first)
        await send(ctx)

    on.run(begin, consumed(on.block.m_axis, wanted, stalls, run))
    return run
