import random

import pytest
import torch

from gradwire.codecs import Bfp, parse
from gradwire_gateware import WIDTHS
from gradwire_gateware.bfp import BfpDecompressor
from support.axi import STALLS, bench, transfer
from support.hardware_chunks import bfp_specs, cells, chunks, padded, payload


def codec_of(spec: str) -> Bfp:
    codec = parse(spec)
    assert isinstance(codec, Bfp)
    return codec


@pytest.mark.parametrize(("spec", "stalls", "width"), cells(bfp_specs(), STALLS, WIDTHS))
def test_values_are_the_native_codecs(spec: str, stalls: str, width: int) -> None:
    codec = codec_of(spec)
    given = [(payload(codec, chunk), len(chunk)) for chunk in chunks()]
    run = transfer(bench(BfpDecompressor, codec, width), [encoded for encoded, _ in given], stalls)
    assert run.packets == [padded(codec, encoded, count, codec.block) for encoded, count in given]


@pytest.mark.parametrize("spec", ["bfp:7x16", "bfp:15x8", "bfp:1x8"])
def test_every_payload_is_decoded_as_by_the_native_codec(spec: str) -> None:
    codec = codec_of(spec)
    draw = random.Random(5)
    size = codec.max_nbytes(codec.block)
    blocks = [bytes([exponent]) + draw.randbytes(size - 1) for exponent in range(256)]
    blocks += [bytes([exponent]) + b"\0\x80" * (size // 2) for exponent in (0, 1, 9, 14, 15, 16, 254, 255)]
    blocks = [block[:size] for block in blocks]
    run = transfer(bench(BfpDecompressor, codec, 256), [b"".join(blocks)])
    assert run.packets == [padded(codec, b"".join(blocks), codec.block * len(blocks), codec.block)]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_packet_that_is_no_payload_spoils_no_other(width: int) -> None:
    codec = codec_of("bfp:7x32")
    draw = random.Random(3)
    good = payload(codec, torch.linspace(-2, 2, 64))
    packets = []
    for _ in range(40):
        packets += [draw.randbytes(draw.randint(1, 200)), good]
    run = transfer(bench(BfpDecompressor, codec, width), packets, "random")
    assert run.packets[1::2] == [padded(codec, good, 64, 32)] * 40


@pytest.mark.parametrize(("spec", "width"), [("bfp:7x16", 256), ("bfp:15x8", 256), ("bfp:15x128", 512)])
def test_a_word_moves_in_every_cycle(spec: str, width: int) -> None:
    codec = codec_of(spec)
    packet = payload(codec, torch.linspace(-1, 1, 128 * width // 32))
    run = transfer(bench(BfpDecompressor, codec, width), [packet])
    assert len(run.left) == 128
    assert len(run.left) / (run.left[-1] - run.left[0] + 1) >= 0.99
