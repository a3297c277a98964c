import random
from typing import Any

from amaranth.sim import Simulator

from gradwire_gateware.nic.composer import Bounded
from support.axi import Run, consumed, produced


def test_a_packet_is_measured_and_cut_to_what_a_memory_holds() -> None:
    draw = random.Random(1)
    packets = [draw.randbytes(draw.choice([0, 1, 32, 33, 128, 160, 161, 1000, 50_000])) for _ in range(30)]
    block, run = Bounded(256, 4), Run()
    sizes: list[int] = []

    async def watch(ctx: Any) -> None:
        while len(sizes) < len(packets):
            _, _, done, size = await ctx.tick().sample(block.done, block.size)
            sizes.extend([size] if done else [])

    simulator = Simulator(block)
    simulator.add_clock(1e-8)
    simulator.add_process(produced(block.s_axis, packets, "none", run))
    simulator.add_testbench(watch, background=True)
    simulator.add_testbench(consumed(block.m_axis, len(packets), "none", run))
    simulator.run()
    assert sizes == [len(packet) for packet in packets][: len(sizes)]
    assert len(sizes) >= len(packets) - 1
    assert run.packets == [
        packet if len(packet) <= 160 else packet[:128] + packet[(len(packet) - 1) // 32 * 32 :]
        for packet in packets
    ]
