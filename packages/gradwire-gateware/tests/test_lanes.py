import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from amaranth import Elaboratable, Module

from gradwire.codecs import Bfp, Inceptionn
from gradwire_gateware.bfp import BfpCompressor, BfpDecompressor
from gradwire_gateware.formats import GROUP_LANES
from gradwire_gateware.inceptionn.decompressor import InceptionnDecompressor
from gradwire_gateware.stream import SkidBuffer
from support.axi import STALLS, bench, transfer
from support.hardware_chunks import EXHAUSTIVE, chunks, padded, payload, raw
from support.lanes import side_by_side

CODEC = Bfp(7, 16)
INCEPTIONN = Inceptionn(2**-10)


class Lanes(Elaboratable):  # type: ignore[misc]
    """Blocks of one kind side by side."""

    def __init__(
        self, kind: Callable[..., Any], *args: Any, lanes: int, width: int, chunk_words: int
    ) -> None:
        blocks = [kind(*args, width) for _ in range(lanes)]
        self._module = m = Module()
        m.submodules += blocks
        self.s_axis, self.m_axis = side_by_side(m, blocks, width, chunk_words)

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        return self._module


@pytest.mark.parametrize("stalls", STALLS)
@pytest.mark.parametrize("lanes", [2, 3, 8, 16] if EXHAUSTIVE else [3])
def test_packets_of_all_lengths_keep_their_order(lanes: int, stalls: str) -> None:
    draw = random.Random(lanes)
    packets = [draw.randbytes(draw.choice((0, 1, 32, 33, 96, draw.randint(2, 700)))) for _ in range(60)]
    on = bench(Lanes, SkidBuffer, lanes=lanes, width=256, chunk_words=8)
    run = transfer(on, packets, stalls)
    assert run.packets == packets


def test_lanes_of_codecs_give_the_native_codecs_bytes() -> None:
    given = chunks(120)
    payloads = [payload(CODEC, chunk) for chunk in given]
    come, go = (
        bench(Lanes, kind, CODEC, lanes=4, width=256, chunk_words=64)
        for kind in (BfpCompressor, BfpDecompressor)
    )
    run = transfer(come, [raw(chunk) for chunk in given], "random")
    assert run.packets == payloads
    run = transfer(go, payloads, "random")
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
    on = bench(Lanes, BfpCompressor, CODEC, lanes=lanes, width=width, chunk_words=words)
    run = transfer(on, packets)
    assert len(run.arrived) == each * words
    assert len(run.arrived) / (run.arrived[-1] - run.arrived[0] + 1) >= 0.99

    packets = [payload(CODEC, chunk)] * (each * lanes)
    on = bench(Lanes, BfpDecompressor, CODEC, lanes=lanes, width=width, chunk_words=words)
    run = transfer(on, packets)
    first = run.left[each * words // 3]  # the first packets leave at the rate of one lane, until others wait
    assert (each * words * 2 // 3) / (run.left[-1] - first + 1) >= 0.99


def two_lanes(chunk_words: int) -> Any:
    """Decompress a stream of 512 bits in two lanes of 256."""
    return bench(Lanes, InceptionnDecompressor, INCEPTIONN, lanes=2, width=256, chunk_words=chunk_words)


def test_two_lanes_decompress_inceptionn() -> None:
    given = chunks(60)
    payloads = [payload(INCEPTIONN, chunk) for chunk in given]
    run = transfer(two_lanes(64), payloads, "random")
    assert run.packets == [
        padded(INCEPTIONN, encoded, len(chunk), GROUP_LANES)
        for encoded, chunk in zip(payloads, given, strict=True)
    ]


@pytest.mark.parametrize("value", [0.0, 0.01, 0.5, 3.0])
def test_two_lanes_give_a_wide_word_in_every_cycle(value: float) -> None:
    """In every class; raw values take 17/16 of their bytes, so that words come late."""
    words, packets = 64, 12
    chunk = torch.full((16 * words,), value)
    run = transfer(two_lanes(2 * words), [payload(INCEPTIONN, chunk)] * packets)
    first = run.left[packets * words // 3]
    share = (packets * words * 2 // 3) / (run.left[-1] - first + 1)
    assert share >= 0.99 * (16 / 17 if value == 3.0 else 1)
