import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from gradwire_gateware.sections import Trim
from support.axi import STALLS, Run, consumed, produced

Ask = tuple[bytes, bool, int, int]


def trimmed(width: int, most: int, asks: list[Ask], wanted: int, stalls: str) -> list[bytes]:
    """Return what leaves of packets, each with whether it is wanted, what is skipped and what is kept."""
    block, run = Trim(width, most), Run()

    async def tell(ctx: Any) -> None:
        draw = random.Random(1)
        for _, is_wanted, skip, nbytes in asks:
            await ctx.tick().repeat(draw.choice([1, 1, 5]))
            for name, value in (("told", 1), ("wanted", is_wanted), ("skip", skip), ("nbytes", nbytes)):
                ctx.set(getattr(block, name), value)
            while not (await ctx.tick().sample(block.takes_last))[2]:
                pass
            ctx.set(block.told, 0)

    simulator = Simulator(block)
    simulator.add_clock(1e-8)
    simulator.add_process(produced(block.s_axis, [packet for packet, *_ in asks], stalls, run))
    simulator.add_process(tell)
    simulator.add_testbench(consumed(block.m_axis, wanted, stalls, run))
    simulator.run()
    return run.packets


@pytest.mark.parametrize("stalls", STALLS)
@pytest.mark.parametrize(("width", "most"), [(256, 94), (512, 94), (256, 3), (512, 14)])
def test_the_bytes_asked_for_leave(width: int, most: int, stalls: str) -> None:
    draw = random.Random(most)
    asks = []
    for _ in range(60):
        packet = draw.randbytes(draw.randint(1, 200))
        skip = draw.randint(0, min(most, len(packet) - 1))
        asks.append((packet, draw.random() < 0.8, skip, draw.randint(0, len(packet) - skip)))
    expected = [packet[skip : skip + nbytes] for packet, is_wanted, skip, nbytes in asks if is_wanted]
    assert trimmed(width, most, asks, len(expected), stalls) == expected


@pytest.mark.parametrize("width", [256, 512])
def test_a_packet_that_ends_early_spoils_no_other(width: int) -> None:
    draw = random.Random(2)
    asks: list[Ask] = []
    for _ in range(30):
        asks.append((draw.randbytes(draw.randint(1, 80)), True, draw.randint(0, 94), draw.randint(100, 2000)))
        asks.append((draw.randbytes(150), True, 61, 80))
    found = trimmed(width, 94, asks, len(asks), "random")
    assert found[1::2] == [packet[61:141] for packet, *_ in asks[1::2]]
