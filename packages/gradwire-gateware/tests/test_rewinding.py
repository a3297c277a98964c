import random
from typing import Any

import pytest
from amaranth import Module, Signal
from amaranth.sim import Simulator

from gradwire_gateware.queues import RewindingQueue

DEPTH = 37


@pytest.mark.parametrize("seed", range(4))
def test_what_is_taken_comes_again_unless_it_has_left(seed: int) -> None:
    m, when, number = Module(), Signal(), Signal(16)
    queue = RewindingQueue(m, "queue", {"number": 16}, DEPTH, DEPTH - 1)
    queue.put(when, number=number)
    draw, left = random.Random(seed), list[int]()

    async def bench(ctx: Any) -> None:
        puts = ahead = 0  # how many are taken but haven't left
        has_left = False
        for _ in range(2000):
            may_put = ctx.get(queue.has_room) and puts - len(left) < DEPTH - 1 and draw.random() < 0.7
            ctx.set(when, may_put)
            ctx.set(number, puts)
            puts += may_put
            rewinds = not has_left and draw.random() < 0.03
            takes = not rewinds and ctx.get(queue.has) and draw.random() < 0.8
            has_left = takes and ahead == 0 and draw.random() < 0.9
            if takes:
                assert ctx.get(queue.first.number) == len(left) + ahead
            if has_left:
                left.append(ctx.get(queue.first.number))
            ahead = 0 if rewinds else ahead + (takes and not has_left)
            for signal, value in (
                (queue.rewinds, rewinds),
                (queue.takes, takes),
                (queue.frees, has_left),
            ):
                ctx.set(signal, value)
            await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert left == list(range(len(left)))
    assert len(left) > 100


def test_a_record_moves_in_every_cycle() -> None:
    m, when, number = Module(), Signal(), Signal(16)
    queue = RewindingQueue(m, "queue", {"number": 16}, DEPTH, DEPTH - 1)
    queue.put(when, number=number)
    moved = []

    async def bench(ctx: Any) -> None:
        for at in range(200):
            ctx.set(when, 1)
            ctx.set(number, at)
            has = ctx.get(queue.has)
            ctx.set(queue.takes, has)
            ctx.set(queue.frees, has)
            assert ctx.get(queue.has_room)
            if has:
                moved.append((at, ctx.get(queue.first.number)))
            await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    cycles = [at for at, _ in moved]
    assert cycles == list(range(cycles[0], 200))
    assert [value for _, value in moved] == list(range(len(moved)))
