import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from amaranth import Module
from amaranth.sim import Simulator

from gradwire.codecs import Bfp
from gradwire.gateware.bfp.compressor import BfpCompressor
from gradwire.gateware.bfp.decompressor import BfpDecompressor
from gradwire.gateware.stream import SkidBuffer
from support.axi import STALLS, Run, consumed, produced
from support.hardware_chunks import EXHAUSTIVE, chunks, padded, payload, raw
from support.lanes import side_by_side

CODEC = Bfp(7, 16)


def transferred(
    blocks: Sequence[Any], packets: list[bytes], stalls: str, width: int = 256, chunk_words: int = 64
) -> Run:
    """Send packets through blocks side by side."""
    m, run = Module(), Run()
    m.submodules += blocks
    come, go = side_by_side(m, blocks, width, chunk_words)
    simulator = Simulator(m)
    simulator.add_clock(1e-8)
    simulator.add_process(produced(come, packets, stalls, run))
    simulator.add_testbench(consumed(go, len(packets), stalls, run))
    simulator.run()
    return run


@pytest.mark.parametrize("stalls", STALLS)
@pytest.mark.parametrize("lanes", [2, 3, 8, 16] if EXHAUSTIVE else [3])
def test_packets_of_all_lengths_keep_their_order(lanes: int, stalls: str) -> None:
    draw = random.Random(lanes)
    packets = [draw.randbytes(draw.choice((0, 1, 32, 33, 96, draw.randint(2, 700)))) for _ in range(60)]
    run = transferred([SkidBuffer(256) for _ in range(lanes)], packets, stalls, chunk_words=8)
    assert run.packets == packets


def test_lanes_of_codecs_give_the_native_codecs_bytes() -> None:
    given = chunks(120)
    payloads = [payload(CODEC, chunk) for chunk in given]
    run = transferred([BfpCompressor(CODEC) for _ in range(3)], [raw(chunk) for chunk in given], "random")
    assert run.packets == payloads
    run = transferred([BfpDecompressor(CODEC) for _ in range(3)], payloads, "random")
    assert run.packets == [
        padded(CODEC, encoded, len(chunk), CODEC.block)
        for encoded, chunk in zip(payloads, given, strict=True)
    ]


@pytest.mark.parametrize(
    ("lanes", "width"), [(4, 256), (4, 512), (8, 512), (16, 256)] if EXHAUSTIVE else [(4, 256)]
)
def test_a_wide_word_moves_in_every_cycle(lanes: int, width: int) -> None:
    words, each = max(16, 2 * lanes) * lanes, 3
    chunk = torch.linspace(-1, 1, words * width // 32)
    packets = [raw(chunk)] * (each * lanes)
    run = transferred([BfpCompressor(CODEC, width) for _ in range(lanes)], packets, "none", width, words)
    assert len(run.arrived) == each * words
    assert len(run.arrived) / (run.arrived[-1] - run.arrived[0] + 1) >= 0.99

    packets = [payload(CODEC, chunk)] * (each * lanes)
    run = transferred([BfpDecompressor(CODEC, width) for _ in range(lanes)], packets, "none", width, words)
    first = run.left[each * words // 3]  # the first packets leave at the rate of one lane, until others wait
    assert (each * words * 2 // 3) / (run.left[-1] - first + 1) >= 0.99
