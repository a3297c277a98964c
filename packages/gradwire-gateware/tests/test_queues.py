import random
from typing import Any

import pytest
from amaranth import Cat, Const, Module, Signal
from amaranth.lib import fifo, memory
from amaranth.sim import Simulator

from gradwire_gateware import queues
from gradwire_gateware.queues import Queue, counted_memory, open_memory, taken_together
from gradwire_gateware.stream import Pipeline, stream
from support.axi import Run, consumed


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
        for _ in range(9):  # one came before the register knew, so that ten are on their way
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
    assert found == [(at % 16, at % 16 << 8) for at in range(16)]


def numbers_that_pass(m: Module, leaving: Any, words: int, stalls: str) -> Run:
    """Return what left a circuit that sends itself the numbers of words, all of which must leave in order."""
    run = Run()
    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_testbench(consumed(leaving, words, stalls, run))
    simulator.run()
    assert run.packets == [at.to_bytes(32, "little") for at in range(words)]
    return run


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("stalls", ["none", "random", "bursts"])
def test_nothing_stops_the_stages_before_a_counted_memory(late: int, stalls: str) -> None:
    m, come, words, begins = Module(), stream(256), 200, Signal()
    stage, number, counted = Pipeline(m, Const(1)), Signal(range(words + 1)), Signal()
    leaving, has_room = counted_memory(m, "memory", come, counted, late)
    m.d.comb += begins.eq(has_room & (number != words))
    m.d.sync += number.eq(number + begins)
    valid, value = begins, number
    for _ in range(late):
        valid, value = stage.hold(valid, resets=True), stage.hold(value)
    m.d.comb += counted.eq(valid)
    for _ in range(10 - late):
        valid, value = stage.hold(valid, resets=True), stage.hold(value)
    m.d.comb += [come.tvalid.eq(valid), come.tdata.eq(value), come.tkeep.eq(-1), come.tlast.eq(1)]
    run = numbers_that_pass(m, leaving, words, stalls)
    if stalls == "none":
        assert run.left[-1] - run.left[0] == words - 1


def test_a_plan_is_taken_with_the_parts_that_it_wants() -> None:
    m = Module()
    plans, one, other, behind = (
        Queue(m, name, {"wanted": 1}) for name in ("plans", "one", "other", "behind")
    )
    whens = [Signal(name=f"when{at}") for at in range(3)]
    wanted = Signal()
    for queue, when in zip((plans, one, other), whens, strict=True):
        queue.put(when, wanted=wanted)
    takes = taken_together(m, plans, [one, other], [behind])
    behind.put(takes, wanted=plans.first.wanted)
    given = [1, 0, 0, 1, 0, 1] * 4
    found = []

    async def bench(ctx: Any) -> None:
        for is_wanted in given:
            ctx.set(wanted, is_wanted)
            ctx.set(Cat(whens), 1)
            await ctx.tick()
            ctx.set(whens[0], 0)
            if is_wanted:
                for queue in (one, other):  # the plan waits for the last of its parts
                    for _ in range(5):
                        await ctx.tick()
                    assert not ctx.get(takes)
                    assert not ctx.get(behind.has)
                    ctx.set(whens[1 + (queue is other)], 1)
                    await ctx.tick()
                    ctx.set(Cat(whens), 0)
            for _ in range(5):
                await ctx.tick()
            assert ctx.get(behind.has)
            assert not ctx.get(one.has)
            assert not ctx.get(other.has)
            found.append(ctx.get(behind.first.wanted))
            ctx.set(behind.takes, 1)
            await ctx.tick()
            ctx.set(behind.takes, 0)

    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert found == given


def test_no_plan_is_taken_without_room() -> None:
    m, when = Module(), Signal()
    plans, part, behind = (Queue(m, name, {"wanted": 1}) for name in ("plans", "part", "behind"))
    plans.put(when & plans.has_room, wanted=0)
    part.put(Const(0), wanted=0)
    behind.put(taken_together(m, plans, [part], [behind]), wanted=0)

    async def bench(ctx: Any) -> None:
        ctx.set(when, 1)
        puts = 0
        for _ in range(40):
            puts += ctx.get(plans.has_room)
            await ctx.tick()
        assert not ctx.get(plans.takes)
        ctx.set(when, 0)
        ctx.set(behind.takes, 1)
        left = 0
        while ctx.get(behind.has):
            left += 1
            await ctx.tick()
        assert left == puts

    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize("stalls", ["none", "random", "bursts"])
@pytest.mark.parametrize("depth", [3, 8])
def test_an_open_memory_has_room_for_words_on_their_way(depth: int, stalls: str) -> None:
    m, come, words = Module(), stream(256), 200
    stage, number, begins = Pipeline(m, Const(1)), Signal(range(words + 1)), Signal()
    leaving, has_room = open_memory(m, "memory", come, depth)
    m.d.comb += begins.eq(has_room & (number != words))
    m.d.sync += number.eq(number + begins)
    valid, value = begins, number
    for _ in range(6):
        valid, value = stage.hold(valid, resets=True), stage.hold(value)
    m.d.comb += [come.tvalid.eq(valid), come.tdata.eq(value), come.tkeep.eq(-1), come.tlast.eq(1)]
    numbers_that_pass(m, leaving, words, stalls)


@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("stalls", ["none", "random", "bursts"])
def test_a_memory_passes_all_words_in_order(stalls: str, *, is_apart: bool) -> None:
    m, come, words = Module(), stream(256), 200
    number = Signal(range(words + 1))
    leaving = queues.memory(m, "memory", come, 24, is_apart=is_apart)
    m.d.sync += number.eq(number + (come.tvalid & come.tready))
    m.d.comb += [come.tvalid.eq(number != words), come.tdata.eq(number), come.tkeep.eq(-1), come.tlast.eq(1)]
    numbers_that_pass(m, leaving, words, stalls)


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_memory_holds_a_whole_chunk(*, is_apart: bool) -> None:
    m, come, depth = Module(), stream(256), 24
    leaving = queues.memory(m, "memory", come, depth, is_apart=is_apart)
    taken = 0

    async def bench(ctx: Any) -> None:
        nonlocal taken
        ctx.set(leaving.tready, 0)
        ctx.set(come.tvalid, 1)
        for _ in range(3 * depth):
            taken += ctx.get(come.tready)
            await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert depth <= taken <= depth + 2, "the buffer behind has two places"


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_no_memory_is_read_where_it_is_written(monkeypatch: pytest.MonkeyPatch, rate: float) -> None:
    ports: list[Any] = []

    class Watched(memory.Memory):  # type: ignore[misc]
        def write_port(self, **options: Any) -> Any:
            ports.append(super().write_port(**options))
            return ports[-1]

        def read_port(self, **options: Any) -> Any:
            ports.append(super().read_port(**options))
            return ports[-1]

    monkeypatch.setattr(fifo, "Memory", Watched)
    m, come, draw = Module(), stream(32), random.Random(int(10 * rate))
    leaving, has_room = open_memory(m, "memory", come, 14)
    written = read = 0

    async def bench(ctx: Any) -> None:
        nonlocal written, read
        put, get = ports[:2]
        for _ in range(3000):
            ctx.set(come.tvalid, ctx.get(has_room) and draw.random() < rate)
            ctx.set(leaving.tready, draw.random() > rate)
            writes, reads = ctx.get(put.en), ctx.get(get.en)
            assert not (writes and reads and ctx.get(put.addr) == ctx.get(get.addr))
            written, read = written + writes, read + reads
            await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert min(written, read) > 200
