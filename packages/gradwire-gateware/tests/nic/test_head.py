from typing import Any

import pytest
from amaranth.sim import Simulator

from gradwire_gateware.nic.intake import HeadReader
from support.axi import words
from support.nic_frames import checksum, other_frames, tcp_frame


def heads(width: int, frames: list[bytes], mtu: int = 1500) -> list[dict[str, int]]:
    reader = HeadReader(width, 0x28, mtu)
    found: list[dict[str, int]] = []

    async def watch(ctx: Any) -> None:
        while len(found) < len(frames):
            _, _, is_found, head = await ctx.tick().sample(reader.found, reader.head)
            if is_found:
                found.append({name: int(getattr(head, name)) for name in reader.head.shape().members})

    async def pass_by(ctx: Any) -> None:
        ctx.set(reader.moves, 1)
        for frame in frames:
            for word in words(frame, width):
                for name, value in zip(("data", "keep", "last"), word, strict=True):
                    ctx.set(getattr(reader, name), value)
                await ctx.tick()
        ctx.set(reader.moves, 0)

    simulator = Simulator(reader)
    simulator.add_clock(1e-8)
    simulator.add_process(pass_by)
    simulator.add_testbench(watch)
    simulator.run()
    return found


@pytest.mark.parametrize("width", [256, 512])
def test_the_parts_of_a_packet_are_found(width: int) -> None:
    frames = [
        tcp_frame(bytes(size), sequence=size, options=bytes(options), tos=0x29)
        for size in (0, 1, 1000)
        for options in (0, 12, 40)
    ]
    for frame, head in zip(frames, heads(width, frames), strict=True):
        assert head["fits"] == head["is_data"] == head["is_sound"] == 1
        assert head["claims"] == head["is_single"] == 0
        assert head["headers"] == 34 + 4 * (frame[46] >> 4)
        assert head["end"] == len(frame)
        assert head["payload"] == len(frame) - head["headers"]
        assert head["sequence"] == frame[41] % 4
        key = [int.from_bytes(frame[at : at + 4], "little") for at in (26, 30, 34)]
        assert [head[name] for name in ("source", "destination", "ports")] == key
        rest = frame[14:16] + b"\0\0" + frame[18:23] + b"\0\0\0" + frame[26:34]
        low = int.from_bytes((~checksum(rest) & 0xFFFF).to_bytes(2, "big"), "little")
        assert head["sum"] % 0xFFFF == low % 0xFFFF


@pytest.mark.parametrize("width", [256, 512])
def test_every_frame_has_a_record_and_few_are_data(width: int) -> None:
    frames = [*other_frames(5), tcp_frame(bytes(4), protocol=253), tcp_frame(bytes(4), sequence=1)]
    found = heads(width, frames)
    assert found[-2]["claims"] == found[-2]["fits"] == 1
    assert found[-1]["is_data"] == found[-1]["fits"] == 1
    for frame, head in zip(frames[:-2], found, strict=False):
        is_cut = len(frame) < 54
        assert not (is_cut and head["fits"])
        if (
            frame[14:15] == b"\x46"
            or frame[20:21] == b"\x20"
            or len(frame) > 1514
            or frame[12:14] != b"\x08\0"
        ):
            assert not (head["fits"] and (head["is_data"] or head["claims"]))
    header = bytearray(frames[-1])
    header[24] ^= 1
    assert [head["is_sound"] for head in heads(width, [bytes(header), frames[-1]])] == [0, 1]


def test_the_mtu_is_the_limit() -> None:
    frames = [tcp_frame(bytes(size)) for size in (536, 537)]
    assert [head["fits"] for head in heads(256, frames, mtu=576)] == [1, 0]
