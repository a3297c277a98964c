from typing import Any

from amaranth.sim import Simulator

from gradwire_gateware.nic.transmitter import FlowTable


def test_connections_are_found_until_they_are_replaced() -> None:
    table = FlowTable(4)
    found = []

    async def bench(ctx: Any) -> None:
        async def write(index: int, key: tuple[int, int, int], first: int, is_open: int) -> None:
            flow = dict(zip(("source", "destination", "ports"), key, strict=True))
            ctx.set(table.flow, {**flow, "first": first, "is_open": is_open})
            ctx.set(table.index, index)
            ctx.set(table.write, 1)
            await ctx.tick()
            ctx.set(table.write, 0)

        async def look_up(key: tuple[int, int, int]) -> None:
            ctx.set(table.key, key[0] | key[1] << 32 | key[2] << 64)
            await ctx.tick().repeat(FlowTable.LATENCY)
            found.append((ctx.get(table.is_open), ctx.get(table.first)))

        await look_up((0, 0, 0))
        for index in range(4):
            await write(index, (index, 5, 1 << 31), index, 1)
        for index in range(5):
            await look_up((index, 5, 1 << 31))
        await look_up((1, 5, 1 << 30))
        await write(1, (1, 5, 1 << 31), 1, 0)
        await write(2, (9, 9, 9), 1, 1)
        for key in ((1, 5, 1 << 31), (2, 5, 1 << 31), (9, 9, 9)):
            await look_up(key)

    simulator = Simulator(table)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert found == [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (0, 0), (0, 0), (0, 0), (0, 0), (1, 1)]
