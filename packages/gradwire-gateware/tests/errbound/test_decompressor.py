import random

import pytest
import torch

from gradwire.codecs import ErrBound, parse
from gradwire_gateware import WIDTHS
from gradwire_gateware.errbound.coder import ErrBoundDecompressor
from support.axi import STALLS, bench, restored
from support.hardware_chunks import EXHAUSTIVE, cells, chunks, decoded, payload

SPECS = (
    "errbound:2^-10", "errbound:2^-126", "errbound:2^126", "errbound:rel=0.05", "errbound:rel=0.25,block=64",
    *(f"errbound:rel=0.01,block={64 << power}" for power in (1, 10) if EXHAUSTIVE), *(
    f"errbound:2^{power}" for power in range(-120, 126, 60) if EXHAUSTIVE
))  # fmt: skip


def codec_of(spec: str) -> ErrBound:
    codec = parse(spec)
    assert isinstance(codec, ErrBound)
    return codec


@pytest.mark.parametrize(("spec", "stalls", "width"), cells(SPECS, STALLS, WIDTHS))
def test_values_are_the_native_codecs(spec: str, stalls: str, width: int) -> None:
    codec = codec_of(spec)
    given = [(payload(codec, chunk), len(chunk)) for chunk in chunks()]
    block = bench(ErrBoundDecompressor, codec, width, chunk_words=8192 if EXHAUSTIVE else 128)
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
    run = restored(bench(ErrBoundDecompressor, codec, width, chunk_words=128), given, "random")
    assert run.packets[1::2] == [decoded(codec, good, 77)] * 20
    assert [len(packet) for packet in run.packets] == [4 * count for _, count in given]


@pytest.mark.parametrize("value", [0.0, 0.01, 1.0, 1e6])
def test_a_word_moves_in_every_cycle(value: float) -> None:
    codec = codec_of("errbound:2^-10")
    packet = payload(codec, torch.full((8 * 128,), value))
    run = restored(bench(ErrBoundDecompressor, codec, 256, chunk_words=128), [(packet, 8 * 128)], "none")
    assert len(run.left) / (run.left[-1] - run.left[0] + 1) >= 0.97
