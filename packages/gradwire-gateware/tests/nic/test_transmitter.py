from typing import Any

import pytest
import torch

from gradwire.codecs import parse
from gradwire.codecs.inceptionn import Inceptionn
from gradwire_gateware.inceptionn.compressor import InceptionnCompressor
from gradwire_gateware.nic.packets import COMPRESSED
from gradwire_gateware.nic.transmitter import ON_THEIR_WAY, Transmitter
from support.axi import STALLS, Bench, Run, bench, consumed, produced, transfer
from support.hardware_chunks import EXHAUSTIVE
from support.nic_frames import connected, other_frames, software_nic, stream_frames, tcp_frame
from support.nic_hardware import handled

FIRST = 0xFFFF_F003
CELLS = [("inceptionn:2^-10", "random", 256), ("inceptionn:2^-6,bounded", "bursts", 512)]
MORE = [(spec, stalls, width) for spec in Inceptionn.EXAMPLES for stalls in STALLS for width in (256, 512)]
COUNT = 60 if EXHAUSTIVE else 16


def transmitter(spec: str, width: int, mtu: int = 1500) -> Bench:
    codec = parse(spec)
    assert isinstance(codec, Inceptionn)
    return bench(Transmitter, codec, width, mtu=mtu)


@pytest.mark.parametrize(("spec", "stalls", "width"), CELLS + MORE if EXHAUSTIVE else CELLS)
def test_frames_are_the_software_nics(spec: str, stalls: str, width: int) -> None:
    nic = software_nic(spec)
    connected(nic, FIRST)
    frames = stream_frames(COUNT, FIRST, seed=width)
    expected = [frame for each in frames for frame in nic.handle(True, each, 0)]
    assert COUNT // 4 < sum(frame[23] == COMPRESSED for frame in expected) < COUNT
    assert handled(transmitter(spec, width), frames, len(expected), stalls, FIRST).packets == expected


@pytest.mark.parametrize("width", [256, 512])
def test_all_else_passes_unchanged(width: int) -> None:
    others = other_frames(FIRST)
    data = [frame for frame in stream_frames(60, FIRST, seed=3) if len(frame) < 200]
    nic = software_nic("inceptionn:2^-10")
    connected(nic, FIRST)
    coded = [frame for each in data for frame in nic.handle(True, each, 0)]
    frames, expected = [], []
    for at, other in enumerate(others):
        frames += [other, data[at % len(data)]]
        expected += [other, coded[at % len(data)]]
    run = handled(transmitter("inceptionn:2^-10", width), frames, len(frames), "random", FIRST)
    assert run.packets == expected


@pytest.mark.parametrize(("width", "nbytes"), [(256, 32), (512, 60)])
def test_no_frame_is_lost_if_each_takes_a_cycle_and_none_leaves_for_long(width: int, nbytes: int) -> None:
    frames = [at.to_bytes(2, "big") * (nbytes // 2) for at in range(80)]
    on, run = transmitter("inceptionn:2^-10", width, mtu=200), Run()

    async def late(ctx: Any) -> None:
        ctx.set(on.block.m_axis.tready, 0)
        for _ in range(200):
            await ctx.tick()
        await consumed(on.block.m_axis, len(frames), "none", run)(ctx)

    on.run(produced(on.block.s_axis, frames, "none", run), late)
    assert run.packets == frames


def test_without_a_connection_nothing_is_compressed() -> None:
    frames = stream_frames(3, FIRST, seed=4)
    assert handled(transmitter("inceptionn:2^-10", 256), frames, 3, "none").packets == frames


def test_large_packets_are_compressed_up_to_the_mtu() -> None:
    frames = [tcp_frame(bytes(size), sequence=FIRST) for size in (8960, 8961)]
    nic = software_nic("inceptionn:2^-10")
    connected(nic, FIRST)
    run = handled(transmitter("inceptionn:2^-10", 512, mtu=9000), frames, 2, "none", FIRST)
    assert run.packets == [*nic.handle(True, frames[0], 0), frames[1]]


@pytest.mark.parametrize("tos", [0, 0x28])
def test_frames_of_full_size_follow_without_a_pause(tos: int) -> None:
    frames = [tcp_frame(bytes(1460), sequence=FIRST, tos=tos)] * 4
    run = handled(transmitter("inceptionn:2^-10", 256), frames, 4, "none", FIRST)
    assert run.arrived[-1] - run.arrived[0] <= 4 * (48 + (2 if tos else 0))


RAW, HALF, SHORT = (bytes.fromhex(each) for each in ("00004040", "0000003f", "0000003b"))
"""4 bytes of a payload, 2, and 1."""
LATE = {256: RAW * 7 + SHORT, 512: RAW * 14 + HALF + SHORT}
"""By width, a word whose payload lets the next word of raw floats end in a third word."""


@pytest.mark.parametrize("width", ON_THEIR_WAY)
@pytest.mark.parametrize("before", [0, 1, 2])
def test_the_compressor_holds_no_more_than_its_memory_expects(width: int, before: int) -> None:
    """One word makes two, and the last word of what is ``before`` three."""
    codec = parse("inceptionn:2^-10")
    assert isinstance(codec, Inceptionn)
    lanes = width // 32
    first = LATE[width] + RAW * lanes
    packets = [first] * before + [RAW * lanes] * 40
    run = transfer(bench(InceptionnCompressor, codec, width), packets)
    come = []  # with each word in: the words of the payload that ends with it
    for packet in packets:
        come += [0] * (len(packet) // (width // 8) - 1) + [-(-len(payload(codec, packet)) // (width // 8))]
    assert len(run.left) == sum(come)
    most = max(
        sum(come[: at + 1]) - sum(left <= arrived for left in run.left)
        for at, arrived in enumerate(run.arrived)
    )
    # A register in front of it holds two words, two behind it one each, and two come until it is full.
    assert most + 6 <= ON_THEIR_WAY[width]


def payload(codec: Inceptionn, packet: bytes) -> bytes:
    return bytes(codec.encode(torch.frombuffer(bytearray(packet), dtype=torch.float32)).numpy())
