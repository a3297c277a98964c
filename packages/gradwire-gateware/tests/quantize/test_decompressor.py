import random

import pytest
import torch

from gradwire.codecs import Quantize
from gradwire_gateware import WIDTHS
from gradwire_gateware.quantize.coder import QuantizeDecompressor
from support.axi import STALLS, bench, restored
from support.hardware_chunks import (
    EXHAUSTIVE,
    VALUES,
    chunks,
    decoded,
    of_bits,
    payload,
    quantize_cells,
    quantize_of,
    raw,
)

LONG = VALUES if EXHAUSTIVE else 40


@pytest.mark.parametrize(("spec", "stalls", "width"), quantize_cells(STALLS, WIDTHS))
def test_values_are_the_native_codecs(spec: str, stalls: str, width: int) -> None:
    codec = quantize_of(spec)
    given = [(payload(codec, chunk), len(chunk)) for chunk in chunks(LONG)]
    block = bench(QuantizeDecompressor, codec, width, chunk_words=8192 if EXHAUSTIVE else 128)
    run = restored(block, given, stalls)
    assert run.packets == [decoded(codec, encoded, count) for encoded, count in given]


@pytest.mark.parametrize("bits", [8, 4])
def test_every_payload_is_decoded_as_by_the_native_codec(bits: int) -> None:
    codec = Quantize(bits, 16)
    draw = random.Random(5)
    scales = [0, 1, 2, 0x7FFFFF, 0x800000, 0x800001, 0xFFFFFF, 0x7F7FFFFF, 0x7F000000, 0x7D924925, 0x7FC00000]
    scales += [draw.randrange(0x7F800000) for _ in range(30)] + [draw.randrange(0x1000000) for _ in range(20)]
    count = 16 * len(scales)
    codes = bytes(draw.choice([0, 1, 2, 3, 5, 7, 9, 15]) * (1 if bits == 8 else 17) for _ in range(count))
    codes = bytes(draw.randrange(1, 256) for _ in range(count)) if bits == 8 else codes
    codes = codes.replace(b"\x80", b"\x81")[: count * bits // 8]
    encoded = raw(of_bits(scales)) + codes
    run = restored(bench(QuantizeDecompressor, codec, 256, chunk_words=128), [(encoded, count)])
    assert run.packets == [decoded(codec, encoded, count)]


@pytest.mark.parametrize("width", WIDTHS if EXHAUSTIVE else WIDTHS[:1])
def test_a_packet_that_is_no_payload_spoils_no_other(width: int) -> None:
    codec = quantize_of("quantize:8,block=48")
    draw = random.Random(3)
    good = payload(codec, torch.linspace(-2, 2, 77))
    given = [
        each
        for _ in range(8)
        for each in ((draw.randbytes(draw.randint(0, 300)), draw.randint(0, 200)), (good, 77))
    ]
    run = restored(bench(QuantizeDecompressor, codec, width, chunk_words=128), given, "random")
    assert run.packets[1::2] == [decoded(codec, good, 77)] * 8
    assert [len(packet) for packet in run.packets] == [4 * count for _, count in given]


@pytest.mark.parametrize(("spec", "width"), [("quantize:8", 256), ("quantize:4,block=16", 256)])
def test_a_word_moves_in_every_cycle(spec: str, width: int) -> None:
    codec, count = quantize_of(spec), 128 * width // 32
    packet = payload(codec, torch.linspace(-1, 1, count))
    run = restored(bench(QuantizeDecompressor, codec, width, chunk_words=128), [(packet, count)])
    assert run.packets == [decoded(codec, packet, count)]
    assert len(run.left) == 128
    assert len(run.left) / (run.left[-1] - run.left[0] + 1) >= 0.99
