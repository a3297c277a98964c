from typing import Any

from amaranth import Module, Signal
from amaranth.sim import Simulator

from gradwire.gateware.nic.queues import Queue


def test_a_queue_has_room_for_those_on_their_way() -> None:
    m = Module()
    queue = Queue(m, "queue", {"low": 4, "high": 12})
    when, low = Signal(), Signal(4)
    queue.put(when, low=low, high=low << 8)
    found = []

    async def bench(ctx: Any) -> None:
        ctx.set(when, 1)
        puts = 0
        while ctx.get(queue.has_room):
            ctx.set(low, puts)
            await ctx.tick()
            puts += 1
        for _ in range(9):
            ctx.set(low, puts)
            await ctx.tick()
            puts += 1
        ctx.set(when, 0)
        ctx.set(queue.takes, 1)
        while ctx.get(queue.has):
            found.append((ctx.get(queue.first.low), ctx.get(queue.first.high)))
            await ctx.tick()
        assert len(found) == puts

    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert found == [(at % 16, at % 16 << 8) for at in range(17)]
