"""Carriers bring a layer to the other end, in as many bytes as they say."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradwire.devices import Device
from gradwire.devices.base import CPU
from gradwire.errors import MissingPackageError
from gradwire.offload.carriers import BitpackCarrier, Carrier, DeltaCarrier
from gradwire.offload.layers import Layer
from gradwire.offload.replicas import DeviceEnd
from gradwire_lab.simulated_device.simulated import Simulated

SHAPES = st.lists(st.lists(st.integers(0, 5), min_size=0, max_size=3), min_size=1, max_size=4)


def ends_of(masters: Sequence[Any], *ends: Sequence[Any], device: Device = CPU) -> list[DeviceEnd]:
    layers = [Layer("", [*masters], [*replicas]) for replicas in ends]
    return [DeviceEnd(device, [each], pinned=False) for each in layers]


def alike(carrier: Carrier, bits: int) -> dict[int, int]:
    return dict.fromkeys(range(len(carrier._masters)), bits)


def carried(carrier: Carrier, bits: int | dict[int, int], *, full: bool = False) -> int:
    nbytes = carrier.pack(alike(carrier, bits) if isinstance(bits, int) else bits, full=full)
    for each in carrier.on_device:
        each[:nbytes] = carrier.host[:nbytes]
    carrier.host.fill_(255)
    for end in range(len(carrier.on_device)):
        carrier.unpack(end)
    return nbytes


@given(SHAPES, st.sampled_from([8, 16, 24, 32]), st.integers(0, 9))
def test_bitpack_keeps_upper_bytes_of_weights_and_all_of_the_others(
    shapes: list[list[int]], bits: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    masters = [torch.randn(shape, generator=generator) for shape in shapes]
    replicas = [torch.full_like(each, 3.0) for each in masters]
    nbytes = carried(BitpackCarrier(ends_of(masters, replicas)), bits)
    for master, replica in zip(masters, replicas, strict=True):
        kept = -1 << 32 - (bits if master.dim() > 1 else 32)
        assert torch.equal(replica.view(torch.int32), master.view(torch.int32) & kept)
    payloads = [each.numel() * bits // 8 + (bits == 8) if each.dim() > 1 else each.nbytes for each in masters]
    assert sum(payloads) <= nbytes <= sum(payloads) + 15 * (len(payloads) - 1)


def test_the_format_of_a_message_may_differ_from_the_one_before() -> None:
    masters, replicas = [torch.randn(9, 9)], [torch.zeros(9, 9)]
    carrier = BitpackCarrier(ends_of(masters, replicas))
    assert [carried(carrier, bits) for bits in (8, 32, 16, 24)] == [82, 324, 162, 243]
    assert torch.equal(replicas[0].view(torch.int32), masters[0].view(torch.int32) & -1 << 8)


def test_a_look_packs_what_pack_would_and_returns_the_squares_of_weights() -> None:
    masters = [torch.randn(40, 9), torch.randn(9), torch.randn(3, 5).t()]
    carrier = BitpackCarrier(ends_of(masters, [torch.zeros_like(each) for each in masters]))
    squares = pytest.approx({number: float(masters[number].double().square().sum()) for number in (0, 2)})
    for bits in (8, 16, 24, 32):
        nbytes = carrier.pack(alike(carrier, bits), full=False)
        packed = carrier.host[:nbytes].clone()
        carrier.host.fill_(255)
        look = carrier.sum_squares(alike(carrier, bits))
        assert look.squares == squares
        assert look.packed_nbytes == nbytes
        spans = [slice(*each) for each in carrier.spans.values()]
        assert all(torch.equal(carrier.host[each], packed[each]) for each in spans)
    some = carrier.sum_squares({0: 8, 1: 8})
    assert some.squares == squares
    assert some.packed_nbytes == carrier.pack({0: 8, 1: 8}, full=False)
    carrier.host.fill_(255)
    none = carrier.sum_squares(None)
    assert none.squares == squares
    assert none.packed_nbytes is None
    assert int(carrier.host.min()) == 255, "nothing was to be packed"
    deltas = DeltaCarrier(ends_of(masters, [torch.zeros_like(each) for each in masters]), "bf16", 1)
    assert deltas.sum_squares(alike(deltas, 16)).squares == squares
    assert deltas.sum_squares(alike(deltas, 16)).packed_nbytes is None, "to pack deltas twice is to lose one"


def test_weights_in_another_layout_arrive_where_they_belong() -> None:
    masters = [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(4, 3).t()]
    replicas = [each.clone().zero_() for each in masters]
    assert not any(each.is_contiguous() for each in (*masters, *replicas))
    for carrier in (
        BitpackCarrier(ends_of(masters, replicas)),
        DeltaCarrier(ends_of(masters, replicas), "fp32", 1),
    ):
        carried(carrier, 32)
        assert all(torch.equal(a, b) for a, b in zip(masters, replicas, strict=True))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_deltas_bring_the_rounded_masters_and_few_bytes_when_little_changed(dtype: str) -> None:
    masters = [torch.randn(300, 400), torch.randn(400)]
    replicas = [torch.zeros_like(each) for each in masters]
    carrier = DeltaCarrier(ends_of(masters, replicas), dtype, checked_every=2)  # type: ignore[arg-type]
    sizes = []
    for step in range(5):
        sizes.append(carried(carrier, 16, full=step == 3))
        expected = masters[0].bfloat16().float() if dtype == "bf16" else masters[0]
        assert torch.equal(replicas[0], expected)
        assert torch.equal(replicas[1], masters[1])
        masters[0][::10] *= 1 + 1e-4
        masters[1] += 1
    assert max(sizes[1], sizes[2], sizes[4]) < 0.2 * min(sizes[0], sizes[3])


def test_a_device_of_its_own_has_the_memory_that_it_needs() -> None:
    device, weights = Simulated(), [nn.Parameter(torch.randn(3, 3))]
    for carrier in (
        BitpackCarrier(ends_of(weights, weights, device=device)),
        DeltaCarrier(ends_of(weights, weights, device=device), "bf16", 1),
    ):
        assert carrier.on_device[0].numel() >= carrier.pack(alike(carrier, 32), full=True)


def test_deltas_on_an_accelerator_without_triton_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradwire.gpu.deltas", None)
    with pytest.raises(MissingPackageError, match=r"needs the package triton.*send weights without deltas"):
        DeltaCarrier(ends_of([torch.zeros(2, 2)], [torch.zeros(2, 2, device="meta")]), "bf16", 1)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_all_ends_get_what_was_packed_once(dtype: str) -> None:
    masters = [torch.randn(7, 5), torch.randn(5)]
    ends = [[torch.zeros_like(each) for each in masters] for _ in range(3)]
    for carrier in (
        BitpackCarrier(ends_of(masters, *ends)),
        DeltaCarrier(ends_of(masters, *ends), dtype, 2),  # type: ignore[arg-type]
    ):
        for _ in range(3):
            masters[0] += 0.5
            carried(carrier, 16)
            for end in ends[1:]:
                assert all(torch.equal(a, b) for a, b in zip(end, ends[0], strict=True))
            assert torch.equal(ends[0][1], masters[1])


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_message_brings_the_masters_that_it_is_to_bring_and_no_others(dtype: str) -> None:
    masters = [torch.randn(9, 7), torch.randn(7), torch.randn(0, 3), torch.randn(7, 5), torch.randn(5)]
    replicas = [torch.zeros_like(each) for each in masters]
    carrier = DeltaCarrier(ends_of(masters, replicas), dtype, 2)  # type: ignore[arg-type]
    expected = [torch.zeros_like(each) for each in masters]
    for brought in ([0, 1, 2], [3, 4], [0, 1, 2, 3, 4], [4], [2, 3], [3]):
        for each in masters:
            each.mul_(1.001)
        carried(carrier, dict.fromkeys(brought, 16), full=brought == [2, 3])
        assert {*carrier.spans} == {*brought}
        for number in brought:
            rounded = dtype == "bf16" and masters[number].dim() > 1
            expected[number] = masters[number].bfloat16().float() if rounded else masters[number].clone()
        assert all(torch.equal(a, b) for a, b in zip(replicas, expected, strict=True))


def test_each_master_has_bits_of_its_own() -> None:
    masters = [torch.randn(5, 5) for _ in range(3)]
    replicas = [torch.zeros_like(each) for each in masters]
    nbytes = carried(BitpackCarrier(ends_of(masters, replicas)), {2: 8, 0: 24})
    assert nbytes == 32 + 75, "26 bytes, those up to a multiple of 16, and the others"
    for number, kept in ((2, -1 << 24), (0, -1 << 8)):
        assert torch.equal(replicas[number].view(torch.int32), masters[number].view(torch.int32) & kept)
    assert not replicas[1].any()
