import pytest
import torch

from gradwire.codecs import parse
from gradwire.codecs.inceptionn import Inceptionn
from gradwire_gateware import WIDTHS
from gradwire_gateware.inceptionn.compressor import InceptionnCompressor
from support.axi import STALLS, bench, transfer
from support.hardware_chunks import cells, chunks, payload, raw


def codec_of(spec: str) -> Inceptionn:
    codec = parse(spec)
    assert isinstance(codec, Inceptionn)
    return codec


@pytest.mark.parametrize(("spec", "stalls", "width"), cells(Inceptionn.EXAMPLES, STALLS, WIDTHS))
def test_the_payload_is_the_native_codecs(spec: str, stalls: str, width: int) -> None:
    codec = codec_of(spec)
    given = chunks()
    run = transfer(bench(InceptionnCompressor, codec, width), [raw(chunk) for chunk in given], stalls)
    assert run.packets == [payload(codec, chunk) for chunk in given]


CLASSES = {0: 2.0**-12, 1: 2.0**-9, 2: 2.0**-2, 3: 3.0}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("value_class", CLASSES)
def test_a_word_moves_in_every_cycle(value_class: int, width: int) -> None:
    count = 128 * width // 32
    chunk = torch.full((count,), CLASSES[value_class])
    run = transfer(bench(InceptionnCompressor, codec_of("inceptionn:2^-10"), width), [raw(chunk)])
    busy = run.left if value_class == 3 else run.arrived
    assert len(run.arrived) == 128
    assert len(busy) / (busy[-1] - busy[0] + 1) >= 0.99
    assert run.left[0] - run.arrived[0] <= 40, "the latency"
