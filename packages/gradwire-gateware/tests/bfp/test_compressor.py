import pytest
import torch

from gradwire.codecs import Bfp, parse
from gradwire_gateware import WIDTHS
from gradwire_gateware.bfp import BfpCompressor
from support.axi import STALLS, bench, transfer
from support.hardware_chunks import bfp_specs, cells, chunks, payload, raw


def codec_of(spec: str) -> Bfp:
    codec = parse(spec)
    assert isinstance(codec, Bfp)
    return codec


@pytest.mark.parametrize(("spec", "stalls", "width"), cells(bfp_specs(), STALLS, WIDTHS))
def test_the_payload_is_the_native_codecs(spec: str, stalls: str, width: int) -> None:
    codec = codec_of(spec)
    given = chunks()
    run = transfer(bench(BfpCompressor, codec, width), [raw(chunk) for chunk in given], stalls)
    assert run.packets == [payload(codec, chunk) for chunk in given]


@pytest.mark.parametrize(
    ("spec", "width"), [("bfp:7x16", 256), ("bfp:7x16", 512), ("bfp:1x8", 256), ("bfp:15x128", 512)]
)
def test_a_word_moves_in_every_cycle(spec: str, width: int) -> None:
    chunk = torch.linspace(-1, 1, 128 * width // 32)
    run = transfer(bench(BfpCompressor, codec_of(spec), width), [raw(chunk)])
    assert len(run.arrived) == 128
    assert len(run.arrived) / (run.arrived[-1] - run.arrived[0] + 1) >= 0.99
