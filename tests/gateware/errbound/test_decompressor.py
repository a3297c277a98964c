import random
from typing import Any

import pytest
import torch
from amaranth.sim import Simulator

from gradwire.codecs import ErrBound, parse
from gradwire.gateware.errbound.decompressor import ErrBoundDecompressor
from gradwire.gateware.words import WIDTHS
from support.axi import STALLS, Run, consumed, words
from support.hardware_chunks import EXHAUSTIVE, cells, chunks, payload, raw

SPECS = ("errbound:2^-10", "errbound:2^-126", "errbound:2^126", *(
    f"errbound:2^{power}" for power in range(-120, 126, 60) if EXHAUSTIVE
))  # fmt: skip


def codec_of(spec: str) -> ErrBound:
    codec = parse(spec)
    assert isinstance(codec, ErrBound)
    return codec


def restored(block: ErrBoundDecompressor, given: list[tuple[bytes, int]], stalls: str) -> Run:
    """Return what leaves for packets and how many values they have."""
    run = Run()

    async def produce(ctx: Any) -> None:
        pauses, stream = STALLS[stalls][0](1), block.s_axis
        for packet, count in given:
            for data, keep, last in words(packet, len(stream.tdata)):
                while next(pauses):
                    ctx.set(stream.tvalid, 0)
                    await ctx.tick()
                for name, value in (("tdata", data), ("tkeep", keep), ("tlast", last), ("tvalid", 1)):
                    ctx.set(getattr(stream, name), value)
                ctx.set(block.values, count)
                while not (await ctx.tick().sample(stream.tready))[2]:
                    pass
        ctx.set(block.s_axis.tvalid, 0)

    simulator = Simulator(block)
    simulator.add_clock(1e-8)
    simulator.add_process(produce)
    simulator.add_testbench(consumed(block.m_axis, len(given), stalls, run))
    simulator.run()
    return run


def decoded(codec: ErrBound, encoded: bytes, count: int) -> bytes:
    out = torch.zeros(count)
    codec.decode(torch.tensor(list(encoded), dtype=torch.uint8), out)
    return raw(out)


@pytest.mark.parametrize(("spec", "stalls", "width"), cells(SPECS, STALLS, WIDTHS))
def test_values_are_the_native_codecs(spec: str, stalls: str, width: int) -> None:
    codec = codec_of(spec)
    given = [(payload(codec, chunk), len(chunk)) for chunk in chunks()]
    block = ErrBoundDecompressor(codec, width, chunk_words=8192 if EXHAUSTIVE else 64)
    run = restored(block, given, stalls)
    assert run.packets == [decoded(codec, encoded, count) for encoded, count in given]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_packet_that_is_no_payload_spoils_no_other(width: int) -> None:
    codec = codec_of("errbound:2^-10")
    draw = random.Random(3)
    good = payload(codec, torch.linspace(-2, 2, 77))
    given = [
        each
        for _ in range(20)
        for each in ((draw.randbytes(draw.randint(0, 300)), draw.randint(0, 200)), (good, 77))
    ]
    run = restored(ErrBoundDecompressor(codec, width, chunk_words=64), given, "random")
    assert run.packets[1::2] == [decoded(codec, good, 77)] * 20
    assert [len(packet) for packet in run.packets] == [4 * count for _, count in given]


@pytest.mark.parametrize("value", [0.0, 0.01, 1.0, 1e6])
def test_a_word_moves_in_every_cycle(value: float) -> None:
    codec = codec_of("errbound:2^-10")
    packet = payload(codec, torch.full((8 * 128,), value))
    run = restored(ErrBoundDecompressor(codec, chunk_words=128), [(packet, 8 * 128)], "none")
    assert len(run.left) / (run.left[-1] - run.left[0] + 1) >= 0.97
