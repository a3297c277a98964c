import pytest
import torch

from gradwire.codecs import parse
from gradwire.codecs.inceptionn import Inceptionn
from gradwire_gateware import WIDTHS
from gradwire_gateware.formats import GROUP_LANES
from gradwire_gateware.inceptionn.decompressor import InceptionnDecompressor
from support.axi import STALLS, bench, transfer
from support.hardware_chunks import EXHAUSTIVE, cells, chunks, padded, payload

SPECS = Inceptionn.EXAMPLES if EXHAUSTIVE else Inceptionn.EXAMPLES[::3]


def codec_of(spec: str) -> Inceptionn:
    codec = parse(spec)
    assert isinstance(codec, Inceptionn)
    return codec


@pytest.mark.parametrize(("spec", "stalls", "width"), cells(SPECS, STALLS, WIDTHS))
def test_values_are_the_native_codecs(spec: str, stalls: str, width: int) -> None:
    codec = codec_of(spec)
    given = [(payload(codec, chunk), len(chunk)) for chunk in chunks()]
    packets = [encoded for encoded, _ in given]
    run = transfer(bench(InceptionnDecompressor, codec, width), packets, stalls)
    assert run.packets == [padded(codec, encoded, count, GROUP_LANES) for encoded, count in given]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("value", [2.0**-12, 2.0**-9, 2.0**-2, 3.0])
def test_a_word_moves_in_every_cycle(value: float, width: int) -> None:
    codec = codec_of("inceptionn:2^-10")
    packet = payload(codec, torch.full((128 * width // 32,), value))
    run = transfer(bench(InceptionnDecompressor, codec, width), [packet])
    busy = run.arrived if value > 1 else run.left
    assert len(run.left) == 128
    assert len(busy) / (busy[-1] - busy[0] + 1) >= 0.99


def test_short_packets_follow_each_other_without_a_pause() -> None:
    codec = codec_of("inceptionn:2^-10")
    packet = payload(codec, torch.full((24,), 2.0**-12))
    run = transfer(bench(InceptionnDecompressor, codec, 256), [packet] * 50)
    assert run.left[-1] - run.left[0] + 1 == len(run.left) == 150


def test_every_order_of_group_lengths_is_decoded() -> None:
    codec = codec_of("inceptionn:2^-10")
    generator = torch.Generator().manual_seed(1)
    sizes = torch.tensor([0.0, 2.0**-9, 2.0**-2, 3.0])
    given = [sizes[torch.randint(0, 4, (8 * count,), generator=generator)] for count in range(1, 20)]
    raw_runs = [torch.cat([torch.full((8,), 3.0)] * count + [torch.zeros(8)] * 3) for count in range(12)]
    packets = [(payload(codec, chunk), len(chunk)) for chunk in given + raw_runs]
    run = transfer(bench(InceptionnDecompressor, codec, 256), [encoded for encoded, _ in packets])
    assert run.packets == [padded(codec, encoded, count, GROUP_LANES) for encoded, count in packets]
