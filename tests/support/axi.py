"""Packets through a simulated block, under stalls of its neighbours, and the cycles that they took."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from amaranth import Elaboratable
from amaranth.sim import Simulator

Stalls = Callable[[int], Iterator[bool]]
"""From a seed, whether a neighbour pauses, cycle by cycle."""


def never(seed: int) -> Iterator[bool]:  # noqa: ARG001 - the same for every seed
    return cycle([False])


def at_random(seed: int) -> Iterator[bool]:
    """Yield a pause in 30 % of the cycles."""
    draw = random.Random(seed)
    while True:
        yield draw.random() < 0.3


def in_bursts(seed: int) -> Iterator[bool]:
    """Yield runs of work and of pause, each of 1 to 40 cycles."""
    draw = random.Random(seed)
    while True:
        for pauses in (False, True):
            yield from [pauses] * draw.randint(1, 40)


STALLS: dict[str, tuple[Stalls, Stalls]] = {
    "none": (never, never),
    "random": (at_random, at_random),
    "bursts": (in_bursts, in_bursts),
}
"""By name: the pauses of the producer, and of the consumer."""


@dataclass
class Run:
    """What came out of a block."""

    packets: list[bytes] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)
    """The cycles in which words went in."""
    left: list[int] = field(default_factory=list)
    """The cycles in which words came out."""


def words(packet: bytes, width: int) -> list[tuple[int, int, int]]:
    """Return the data, keep and last of a packet's words."""
    size = width // 8
    cut = [packet[at : at + size] for at in range(0, len(packet), size)] or [b""]
    return [
        (int.from_bytes(part, "little"), (1 << len(part)) - 1, int(at == len(cut) - 1))
        for at, part in enumerate(cut)
    ]


def transfer(
    block: Elaboratable,
    packets: list[bytes],
    stalls: str = "none",
    *,
    width: int = 256,
    expected: int | None = None,
) -> Run:
    """Send packets through a block; check the protocol on its output. Fails if it moves nothing for long."""
    come, go = block.s_axis, block.m_axis
    run = Run()
    wanted = len(packets) if expected is None else expected
    producer, consumer = STALLS[stalls]
    todo = [word for packet in packets for word in words(packet, width)]

    async def produce(ctx: Any) -> None:
        pauses = producer(1)
        now = 0
        for data, keep, last in todo:
            while next(pauses):
                ctx.set(come.tvalid, 0)
                ctx.set(come.tdata, 0xDEAD_BEEF)
                await ctx.tick()
                now += 1
            ctx.set(come.tdata, data)
            ctx.set(come.tkeep, keep)
            ctx.set(come.tlast, last)
            ctx.set(come.tvalid, 1)
            accepted = False
            while not accepted:
                _, _, accepted = await ctx.tick().sample(come.tready)
                now += 1
            run.arrived.append(now)
        ctx.set(come.tvalid, 0)

    async def consume(ctx: Any) -> None:
        pauses = consumer(2)
        size = width // 8
        now = idle = 0
        pending = None
        packet = b""
        while len(run.packets) < wanted:
            ready = not next(pauses)
            ctx.set(go.tready, ready)
            _, _, valid, *word = await ctx.tick().sample(go.tvalid, go.tdata, go.tkeep, go.tlast)
            now += 1
            assert pending is None or (valid and word == pending), "a stalled word must stay as it is"
            pending = word if valid and not ready else None
            idle = 0 if valid and ready else idle + 1
            assert idle < 2000, (
                f"nothing came out for {idle} cycles; {len(run.packets)} of {wanted} packets did"
            )
            if not (valid and ready):
                continue
            data, keep, last = word
            count = int(keep).bit_count()
            assert keep == (1 << count) - 1, "kept bytes come first"
            assert last or count == size, "only the last word may be partial"
            packet += int(data).to_bytes(size, "little")[:count]
            run.left.append(now)
            if last:
                run.packets.append(packet)
                packet = b""

    simulator = Simulator(block)
    simulator.add_clock(1e-8)
    simulator.add_process(produce)
    simulator.add_testbench(consume)
    simulator.run()
    return run
