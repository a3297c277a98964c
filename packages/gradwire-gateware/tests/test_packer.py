import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from gradwire_gateware.packer import Packer


@pytest.mark.parametrize("kind", [{}, {"come_far": True}, {"are_wide": True}, {"masks": True}])
@pytest.mark.parametrize(("width", "most"), [(256, 34), (256, 2), (256, 17), (512, 68), (512, 33)])
def test_groups_leave_without_gaps(width: int, most: int, kind: dict[str, bool]) -> None:
    draw = random.Random(most)
    packets = [
        [draw.randbytes(draw.choice([0, 1, most // 2, most - 1, most])) for _ in range(draw.randint(1, 60))]
        for _ in range(12)
    ]
    packer = Packer(width, most, **kind)
    found: list[bytes] = []

    async def feed(ctx: Any) -> None:
        for packet in packets:
            for at, group in enumerate(packet):
                ctx.set(packer.data, int.from_bytes(group, "little"))
                ctx.set(packer.count, len(group))
                ctx.set(packer.last, at == len(packet) - 1)
                ctx.set(packer.valid, 1)
                while not (await ctx.tick().sample(packer.ready))[2]:
                    pass
                ctx.set(packer.valid, 0)
                for _ in range(draw.choice([0, 0, 2])):
                    await ctx.tick()

    async def collect(ctx: Any) -> None:
        out, packet = packer.m_axis, b""
        while len(found) < len(packets):
            ready = draw.random() < 0.7
            ctx.set(out.tready, ready)
            _, _, valid, data, keep, last = await ctx.tick().sample(
                out.tvalid, out.tdata, out.tkeep, out.tlast
            )
            if valid and ready:
                assert last or keep == (1 << width // 8) - 1
                packet += int(data).to_bytes(width // 8, "little")[: int(keep).bit_count()]
            if valid and ready and last:
                found.append(packet)
                packet = b""

    simulator = Simulator(packer)
    simulator.add_clock(1e-8)
    simulator.add_process(feed)
    simulator.add_testbench(collect)
    simulator.run()
    assert found == [b"".join(packet) for packet in packets]
