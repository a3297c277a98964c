from typing import Any

from amaranth.sim import Simulator

from gradwire_gateware.nic.intake import Intake
from support.axi import Run, consumed, produced
from support.nic_frames import other_frames


def test_every_frame_comes_twice_and_has_one_record() -> None:
    frames = other_frames(1)
    block, kept, read = Intake(256, 0x28, 1500, 64), Run(), Run()
    found: list[int] = []

    async def watch(ctx: Any) -> None:
        ctx.set(block.has_room, 1)
        while len(found) < len(frames):
            _, _, is_found, fits = await ctx.tick().sample(block.found, block.head.fits)
            found.extend([fits] if is_found else [])

    simulator = Simulator(block)
    simulator.add_clock(1e-8)
    simulator.add_process(watch)
    simulator.add_process(produced(block.s_axis, frames, "random", Run()))
    simulator.add_testbench(consumed(block.kept, len(frames), "bursts", kept))
    simulator.add_testbench(consumed(block.read, len(frames), "random", read))
    simulator.run()
    assert kept.packets == read.packets == frames
    assert len(found) == len(frames)
    assert 0 < sum(found) < len(frames)
