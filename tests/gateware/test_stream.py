import random

import pytest
from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.sim import Simulator

from gradwire.gateware.stream import (
    SkidBuffer,
    block_ports,
    count_kept,
    first_bytes,
    leading_zeros,
    registered,
)
from support.axi import STALLS, bench, transfer


def evaluated(
    inputs: list[tuple[int, ...]], shapes: tuple[int, ...], function: object, bits: int
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
