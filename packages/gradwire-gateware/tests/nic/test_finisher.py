import random
from typing import Any

import pytest
from amaranth.sim import Simulator

from gradwire_gateware.nic.composer import Finisher
from gradwire_gateware.nic.packets import SUM_AT
from gradwire_gateware.nic.seal import TcpSum
from support.axi import STALLS, Run, consumed, produced
from support.nic_frames import tcp_frame


@pytest.mark.parametrize("stalls", STALLS)
@pytest.mark.parametrize("width", [256, 512])
def test_the_checksum_is_written_into_composed_frames_only(width: int, stalls: str) -> None:
    draw = random.Random(width)
    frames, composed, expected = [], [], []
    for _ in range(40):
        frame = tcp_frame(draw.randbytes(draw.randint(0, 300)))
        composed.append(draw.random() < 0.6)
        expected.append(frame)
        blank = frame[:SUM_AT] + b"\0\0" + frame[SUM_AT + 2 :]
        frames.append(blank if composed[-1] else frame)
    block, run = Finisher(width, TcpSum(width), 32), Run()

    async def tell(ctx: Any) -> None:
        for frame, is_composed in zip(frames, composed, strict=True):
            facts = {"is_composed": int(is_composed), "headers": 54, "end": len(frame), "place": SUM_AT // 2}
            ctx.set(block.facts, facts)
            ctx.set(block.told, 1)
            while not (await ctx.tick().sample(block.takes_last))[2]:
                pass
            ctx.set(block.told, 0)

    simulator = Simulator(block)
    simulator.add_clock(1e-8)
    simulator.add_process(tell)
    simulator.add_process(produced(block.s_axis, frames, stalls, run))
    simulator.add_testbench(consumed(block.m_axis, len(frames), stalls, run))
    simulator.run()
    assert run.packets == expected
