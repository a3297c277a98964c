import pytest
import torch

from gradwire_gateware import WIDTHS
from gradwire_gateware.quantize.coder import QuantizeCompressor
from support.axi import STALLS, bench, transfer
from support.hardware_chunks import EXHAUSTIVE, VALUES, chunks, payload, quantize_cells, quantize_of, raw

LONG = VALUES if EXHAUSTIVE else 40


@pytest.mark.parametrize(("spec", "stalls", "width"), quantize_cells(STALLS, WIDTHS))
def test_the_payload_is_the_native_codecs(spec: str, stalls: str, width: int) -> None:
    codec = quantize_of(spec)
    given = chunks(LONG)
    block = bench(QuantizeCompressor, codec, width, chunk_words=8192 if EXHAUSTIVE else 64)
    run = transfer(block, [raw(chunk) for chunk in given], stalls)
    assert run.packets == [payload(codec, chunk) for chunk in given]


def test_a_longer_packet_is_cut_into_chunks() -> None:
    codec = quantize_of("quantize:4,block=48")
    values = torch.linspace(-3, 3, 8 * 20 - 3)
    run = transfer(bench(QuantizeCompressor, codec, chunk_words=8), [raw(values)] * 2, expected=6)
    assert run.packets == [payload(codec, values[at : at + 64]) for at in (0, 64, 128)] * 2


@pytest.mark.parametrize(("spec", "width"), [("quantize:8", 256), ("quantize:4,block=16", 256)])
def test_a_word_moves_in_every_cycle(spec: str, width: int) -> None:
    codec, chunk = quantize_of(spec), torch.linspace(-1, 1, 128 * width // 32)
    run = transfer(bench(QuantizeCompressor, codec, width, chunk_words=64), [raw(chunk)], expected=2)
    assert run.packets == [payload(codec, half) for half in chunk.chunk(2)]
    assert len(run.arrived) == 128
    assert len(run.arrived) / (run.arrived[-1] - run.arrived[0] + 1) >= 0.99
