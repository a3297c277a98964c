import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from gradwire_gateware.nic.transmitter import Split
from support.axi import Run, consumed, produced


@pytest.mark.parametrize("width", [256, 512])
def test_whole_floats_and_the_bytes_behind_them_part(width: int) -> None:
    draw = random.Random(1)
    counts = [(draw.choice([1, 7, 8, 9, 15, 16, 17, 24, 32, 40]), draw.randint(0, 3)) for _ in range(60)]
    packets = [draw.randbytes(4 * floats + tail) for floats, tail in counts]
    block, run = Split(width), Run()
    tails: list[bytes] = []

    async def tell(ctx: Any) -> None:
        ctx.set(block.told, 1)
        for floats, _ in counts:
            ctx.set(block.floats, floats)
            while not (await ctx.tick().sample(block.takes_last))[2]:
                pass

    async def watch(ctx: Any) -> None:
        while len(tails) < len(counts):
            _, _, done, tail = await ctx.tick().sample(block.done, block.tail)
            if done:
                tails.append(int(tail).to_bytes(3, "little"))

    simulator = Simulator(block)
    simulator.add_clock(1e-8)
    simulator.add_process(produced(block.s_axis, packets, "random", run))
    simulator.add_process(tell)
    simulator.add_testbench(watch)
    simulator.add_testbench(consumed(block.m_axis, len(packets), "random", run))
    simulator.run()
    assert run.packets == [packet[: 4 * floats] for packet, (floats, _) in zip(packets, counts, strict=True)]
    assert [found[:tail] for found, (_, tail) in zip(tails, counts, strict=True)] == [
        packet[4 * floats :] for packet, (floats, _) in zip(packets, counts, strict=True)
    ]
