"""Packets through a simulated block, under stalls of its neighbours, and the cycles that they took."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import cycle
from typing import Any

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


def produced(stream: Any, packets: list[bytes], stalls: str, run: Run, seed: int = 1) -> Callable[[Any], Any]:
    """Return the process that sends packets."""
    width = len(stream.tdata)
    todo = [word for packet in packets for word in words(packet, width)]

    async def produce(ctx: Any) -> None:
        pauses = STALLS[stalls][0](seed)
        now = 0
        for data, keep, last in todo:
            while next(pauses):
                ctx.set(stream.tvalid, 0)
                ctx.set(stream.tdata, 0xDEAD_BEEF)
                await ctx.tick()
                now += 1
            ctx.set(stream.tdata, data)
            ctx.set(stream.tkeep, keep)
            ctx.set(stream.tlast, last)
            ctx.set(stream.tvalid, 1)
            accepted = False
            while not accepted:
                _, _, accepted = await ctx.tick().sample(stream.tready)
                now += 1
            run.arrived.append(now)
        ctx.set(stream.tvalid, 0)

    return produce


def consumed(
    stream: Any, wanted: int, stalls: str, run: Run, seed: int = 2, most_idle: int = 2000
) -> Callable[[Any], Any]:
    """Return the process that takes packets, and fails if a word changes while it waits.

    It also fails if none comes for ``most_idle`` cycles.
    """
    size = len(stream.tdata) // 8

    async def consume(ctx: Any) -> None:
        pauses = STALLS[stalls][1](seed)
        now = idle = 0
        pending = None
        packet = b""
        while len(run.packets) < wanted:
            ready = not next(pauses)
            ctx.set(stream.tready, ready)
            _, _, valid, *word = await ctx.tick().sample(
                stream.tvalid, stream.tdata, stream.tkeep, stream.tlast
            )
            now += 1
            assert pending is None or (valid and word == pending), "a stalled word must stay as it is"
            pending = word if valid and not ready else None
            idle = 0 if valid and ready else idle + 1
            assert idle < most_idle, (
                f"nothing came for {idle} cycles, after {len(run.packets)} of {wanted} packets"
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

    return consume


class Bench:
    """A block in a simulator, which is built once for all that goes through it; each run begins anew."""

    def __init__(self, block: Any) -> None:
        self.block = block
        self._simulator: Simulator | None = None
        self._parts: list[Callable[[Any], Any]] = []

    def run(self, send: Callable[[Any], Any], take: Callable[[Any], Any]) -> None:
        """Run a process that sends, until one that takes has ended."""
        self._parts[:] = send, take
        simulator, self._simulator = self._simulator, None  # a failure leaves it in the midst of something
        if simulator is None:
            simulator = Simulator(self.block)
            simulator.add_clock(1e-8)
            simulator.add_process(self._send)
            simulator.add_testbench(self._take)
        else:
            simulator.reset()
        simulator.run()
        self._simulator = simulator

    async def _send(self, ctx: Any) -> None:
        await self._parts[0](ctx)

    async def _take(self, ctx: Any) -> None:
        await self._parts[1](ctx)


@lru_cache(maxsize=8)
def bench(kind: Callable[..., Any], *args: Any, **parameters: Any) -> Bench:
    """Return the bench of a block, the same one for the same parameters."""
    return Bench(kind(*args, **parameters))


def transfer(on: Bench, packets: list[bytes], stalls: str = "none", *, expected: int | None = None) -> Run:
    """Send packets through a block under stalls of its neighbours."""
    run = Run()
    wanted = len(packets) if expected is None else expected
    on.run(produced(on.block.s_axis, packets, stalls, run), consumed(on.block.m_axis, wanted, stalls, run))
    return run


def restored(on: Bench, given: list[tuple[bytes, int]], stalls: str = "none") -> Run:
    """Send payloads through a decompressor that is told how many values each has."""
    run, block = Run(), on.block

    async def produce(ctx: Any) -> None:
        pauses, stream = STALLS[stalls][0](1), block.s_axis
        for packet, count in given:
            for data, keep, last in words(packet, len(stream.tdata)):
                while next(pauses):
                    ctx.set(stream.tvalid, 0)
                    await ctx.tick()
                for name, value in (("tdata", data), ("tkeep", keep), ("tlast", last), ("tvalid", 1)):
                    ctx.set(getattr(stream, name), value)
                ctx.set(block.values, count)
                while not (await ctx.tick().sample(stream.tready))[2]:
                    pass
        ctx.set(block.s_axis.tvalid, 0)

    on.run(produce, consumed(block.m_axis, len(given), stalls, run))
    return run
