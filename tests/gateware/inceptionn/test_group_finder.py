import random

import pytest
import torch

from gradwire.codecs import Inceptionn
from gradwire.gateware.inceptionn.decompressor import InceptionnDecompressor
from gradwire.gateware.inceptionn.format import GROUP_LANES
from gradwire.gateware.words import WIDTHS
from support.axi import bench, transfer
from support.hardware_chunks import padded, payload


@pytest.mark.parametrize("width", WIDTHS)
def test_a_packet_that_is_no_payload_spoils_no_other(width: int) -> None:
    codec = Inceptionn(2**-10)
    draw = random.Random(3)
    good = payload(codec, torch.linspace(-2, 2, 40))
    packets = []
    for _ in range(15):
        packets += [draw.randbytes(draw.randint(1, 300)), good]
    run = transfer(bench(InceptionnDecompressor, codec, width), packets, "random")
    assert run.packets[1::2] == [padded(codec, good, 40, GROUP_LANES)] * 15


def test_a_packet_ends_without_another_behind_it() -> None:
    codec = Inceptionn(2**-10)
    packet = payload(codec, torch.full((80,), 3.0))
    for size in (1, 3):
        chunk = torch.full((8 * size,), 3.0)
        run = transfer(bench(InceptionnDecompressor, codec, 256), [payload(codec, chunk)])
        assert len(run.packets) == 1
    run = transfer(bench(InceptionnDecompressor, codec, 256), [packet, packet[:40]], expected=2)
    assert len(run.packets) == 2
