import random
from collections.abc import Sequence
from typing import Any

import pytest
from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.sim import Simulator

from gradwire_gateware.stream import (
    Pipeline,
    SkidBuffer,
    block_ports,
    count_kept,
    first_bytes,
    leading_zeros,
    registered,
    shift_left_bytes,
    shift_right_bytes,
    spread_left_bytes,
)
from support.axi import STALLS, bench, transfer
from support.keeping import Keeping


def evaluated(
    inputs: Sequence[tuple[int, ...]], shapes: tuple[int, ...], function: object, bits: int
) -> list[int]:
    """Return what a circuit of ``function`` gives for each input."""
    m = Module()
    given = [Signal(shape) for shape in shapes]
    out = Signal(bits)
    m.d.comb += out.eq(function(*given))  # type: ignore[operator]
    found: list[int] = []

    async def bench(ctx: object) -> None:
        for values in inputs:
            for signal, value in zip(given, values, strict=True):
                ctx.set(signal, value)  # type: ignore[attr-defined]
            found.append(ctx.get(out))  # type: ignore[attr-defined]

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()
    return found


@pytest.mark.parametrize("stalls", STALLS)
@pytest.mark.parametrize("width", [256, 512])
def test_a_skid_buffer_gives_what_it_takes(width: int, stalls: str) -> None:
    draw = random.Random(width)
    packets = [draw.randbytes(draw.randint(0, 300)) for _ in range(30)]
    run = transfer(bench(SkidBuffer, width), packets, stalls)
    assert run.packets == packets
    if stalls == "none":
        assert run.left[-1] - run.left[0] + 1 == len(run.left)
        assert run.left[0] == run.arrived[0] + 1


@pytest.mark.parametrize("stalls", STALLS)
def test_a_word_that_is_kept_goes_before_the_next_one(stalls: str) -> None:
    draw = random.Random(5)
    packets = [draw.randbytes(draw.randint(0, 300)) for _ in range(30)]
    run = transfer(bench(Keeping, 256), packets, stalls)
    assert run.packets == packets
    if stalls == "none":
        assert run.left == run.arrived, "a word goes on in the cycle in which it comes"


class Registered(wiring.Component):  # type: ignore[misc]
    """A register between two streams, whose words may go in two of three cycles."""

    def __init__(self) -> None:
        super().__init__(block_ports(256))

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        at = Signal(range(3))
        m.d.sync += at.eq(Mux(at == 2, 0, at + 1))
        registered(m, self.s_axis, self.m_axis, at != 2)
        return m


@pytest.mark.parametrize("stalls", STALLS)
def test_a_register_gives_what_it_takes(stalls: str) -> None:
    packets = [random.Random(3).randbytes(count) for count in range(0, 300, 7)]
    run = transfer(bench(Registered), packets, stalls)
    assert run.packets == packets
    if stalls == "none":
        assert run.left[0] == run.arrived[0] + 1


def test_kept_bytes_are_counted_and_masked() -> None:
    counts = list(range(33))
    assert evaluated([((1 << count) - 1,) for count in counts], (32,), count_kept, 6) == counts
    assert evaluated([(count,) for count in counts], (6,), lambda count: first_bytes(count, 32), 32) == [
        (1 << count) - 1 for count in counts
    ]


def test_leading_zeros_are_counted() -> None:
    values = [1 << at | (1 << at) - 1 & 0x2A5A_9696 for at in range(32)]
    wanted = [31 - at for at in range(32)]
    assert evaluated([(value,) for value in values], (32,), leading_zeros, 5) == wanted
    assert evaluated([(0,)], (32,), leading_zeros, 5) == [31]


def test_two_copies_of_a_register_are_equal() -> None:
    m = Module()
    enable, value = Signal(), Signal(3)
    copies = Cat(Pipeline(m, enable).hold_twice(value, resets=True))

    async def bench(ctx: Any) -> None:
        wanted = 0
        for step in range(32):
            assert ctx.get(copies) == 9 * wanted
            ctx.set(value, step * 5 % 8)
            ctx.set(enable, step % 3 != 0)
            wanted = step * 5 % 8 if step % 3 else wanted
            await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize(("nbytes", "unit"), [(1, 1), (5, 1), (5, 3), (40, 4)])
def test_bytes_move_down_by_units(nbytes: int, unit: int) -> None:
    value = int.from_bytes(random.Random(nbytes).randbytes(48), "little")
    inputs = [(value, count) for count in range(16)]
    moved = evaluated(
        inputs, (8 * 48, 4), lambda x, count: shift_right_bytes(x, count, nbytes, unit=unit), 8 * nbytes
    )
    assert moved == [(value >> 8 * unit * count) % 2 ** (8 * nbytes) for count in range(16)]


@pytest.mark.parametrize("nbytes", [5, 12, 40])
def test_copies_of_a_count_move_bytes_as_one_does(nbytes: int) -> None:
    m = Module()
    value, count = Signal(40), Signal(4)
    spread, shifted = Signal(8 * nbytes), Signal(8 * nbytes)
    m.d.comb += [
        spread.eq(spread_left_bytes(m, value, (count, count), nbytes)),
        shifted.eq(shift_left_bytes(value, count, nbytes)),
    ]

    async def bench(ctx: Any) -> None:
        for step in range(16):
            ctx.set(value, 0x9182_7364_F5)
            ctx.set(count, step)
            assert ctx.get(spread) == ctx.get(shifted) == (0x9182_7364_F5 << 8 * step) % 2 ** (8 * nbytes)

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()
