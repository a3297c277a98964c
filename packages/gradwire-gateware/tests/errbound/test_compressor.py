import pytest
import torch

from gradwire.codecs import ErrBound, parse
from gradwire_gateware import WIDTHS
from gradwire_gateware.errbound.coder import ErrBoundCompressor
from support.axi import STALLS, bench, transfer
from support.hardware_chunks import EXHAUSTIVE, cells, chunks, payload, raw

SPECS = (
    "errbound:2^-10", "errbound:2^-126", "errbound:2^126", "errbound:2^115",
    "errbound:rel=0.05", "errbound:rel=0.25,block=64", "errbound:rel=0.001",
    *(("errbound:rel=1", "errbound:rel=0.01,block=128", "errbound:rel=0.1,block=4096") if EXHAUSTIVE else ()),
    *(f"errbound:2^{power}" for power in range(-120, 126, 60) if EXHAUSTIVE),
)  # fmt: skip


def codec_of(spec: str) -> ErrBound:
    codec = parse(spec)
    assert isinstance(codec, ErrBound)
    return codec


@pytest.mark.parametrize(("spec", "stalls", "width"), cells(SPECS, STALLS, WIDTHS))
def test_the_payload_is_the_native_codecs(spec: str, stalls: str, width: int) -> None:
    codec = codec_of(spec)
    given = chunks()
    block = bench(ErrBoundCompressor, codec, width, chunk_words=4096 if EXHAUSTIVE else 64)
    run = transfer(block, [raw(chunk) for chunk in given], stalls)
    assert run.packets == [payload(codec, chunk) for chunk in given]


def test_a_longer_packet_is_cut_into_chunks() -> None:
    codec = codec_of("errbound:2^-10")
    values = torch.linspace(-3, 3, 8 * 40 - 3)
    run = transfer(bench(ErrBoundCompressor, codec, chunk_words=16), [raw(values)] * 2, expected=6)
    assert run.packets == [payload(codec, values[at : at + 128]) for at in (0, 128, 256)] * 2


@pytest.mark.parametrize("value", [0.0, 0.01, 1.0, 1e6])
def test_a_word_moves_in_every_cycle(value: float) -> None:
    packet = raw(torch.full((8 * 256,), value))
    run = transfer(
        bench(ErrBoundCompressor, codec_of("errbound:2^-10"), 256, chunk_words=64), [packet], expected=4
    )
    busy = run.left[68:] if value > 100 else run.arrived  # tags of the first chunk leave as they come
    assert len(busy) / (busy[-1] - busy[0] + 1) >= 0.97
