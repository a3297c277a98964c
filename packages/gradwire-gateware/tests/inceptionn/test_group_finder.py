import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from gradwire.codecs import Inceptionn
from gradwire_gateware import WIDTHS
from gradwire_gateware.formats import GROUP_LANES
from gradwire_gateware.inceptionn.decompressor import InceptionnDecompressor
from support.axi import Bench, bench, transfer, words
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


def ends_within(on: Bench, sent: Sequence[tuple[int, int, int]], cycles: int) -> bool:
    """Return whether a packet ends in so many cycles, of words after which the producer pauses."""
    come, go = on.block.s_axis, on.block.m_axis
    ends = []

    async def produce(context: Any) -> None:
        for data, keep, last in sent:
            for signal, value in ((come.tdata, data), (come.tkeep, keep), (come.tlast, last)):
                context.set(signal, value)
            context.set(come.tvalid, 1)
            while not (await context.tick().sample(come.tready))[2]:
                pass
        context.set(come.tvalid, 0)

    async def take(context: Any) -> None:
        context.set(go.tready, 1)
        for _ in range(cycles):
            _, _, valid, last = await context.tick().sample(go.tvalid, go.tlast)
            ends.append(valid and last)

    on.run(produce, take)
    return any(ends)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("begun", [0, 1, 2, 3, 4])
def test_a_packet_ends_although_the_next_one_pauses(width: int, begun: int) -> None:
    codec, on = Inceptionn(2**-10), bench(InceptionnDecompressor, Inceptionn(2**-10), width)
    following = words(payload(codec, torch.full((400,), 3.0)), width)[:begun]
    for groups in range(1, 17):
        packet = payload(codec, torch.full((GROUP_LANES * groups,), 3.0))
        assert ends_within(on, words(packet, width) + following, 70), groups


VALUES = {0: 0.0, 1: 0.01, 2: 0.5, 4: 3.0}
"""Values of which a lane takes so many bytes."""


def values_of(nbytes: int) -> list[float]:
    """Return a group's values whose lanes take so many bytes."""
    sizes: list[int] = []
    for size in (4, 2, 1):
        sizes += [size] * min((nbytes - sum(sizes)) // size, GROUP_LANES - len(sizes))
    assert sum(sizes) == nbytes
    return [VALUES[size] for size in sizes] + [VALUES[0]] * (GROUP_LANES - len(sizes))


@pytest.mark.parametrize("begins", range(28, 32))
@pytest.mark.parametrize("width", WIDTHS)
def test_a_last_group_may_end_in_the_third_word(width: int, begins: int) -> None:
    """The groups of one output begin in the last bytes of a word, the last one of the packet among them."""
    codec, raw = Inceptionn(2**-10), [values_of(32)] * (width // 256)
    before = [values_of(begins - 2), *([values_of(30)] if width == 512 else [])]
    chunk = torch.tensor([value for group in [*before, *raw] for value in group])
    packet = payload(codec, chunk)
    assert len(packet) == begins + (32 if width == 512 else 0) + 34 * len(raw)
    on = bench(InceptionnDecompressor, codec, width)
    assert ends_within(on, words(packet, width) + words(packet, width)[:1], 70)
    run = transfer(bench(InceptionnDecompressor, codec, width), [packet] * 3, "random")
    assert run.packets == [padded(codec, packet, len(chunk), GROUP_LANES)] * 3
