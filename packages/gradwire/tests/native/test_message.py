"""Messages of several tensors have the bytes of ``bitpack`` and the sums of ``sum_norms``, on all targets."""

from __future__ import annotations

import math

import pytest
import torch

from gradwire import _native
from gradwire._native import Pass
from gradwire._native.tensors import Packed
from gradwire.codecs.truncate import BitPack

LARGE = 300_001


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_message_has_the_bytes_of_bitpack_and_the_sums_of_squares(
    bits: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_THREADS", threads)
    generator = torch.Generator().manual_seed(bits)
    tensors = [torch.randn(n, generator=generator) for n in (0, 1, 17, LARGE, 65536)]
    codec, packed, expected, end = BitPack(bits // 8), list[Packed](), list[torch.Tensor](), 0
    for number, each in enumerate(tensors):
        packed.append(Packed(each, end, bits, number != 2))
        expected.append(codec.encode(each))
        end += expected[-1].numel()
    sums = [_native.sum_norms(Pass.LOOK, each, each) for each in tensors]
    for name in _native.available_targets():
        with _native.use_target(name):
            message = torch.full((end + 1,), 255, dtype=torch.uint8)
            found = _native.pack_message(packed, message)
        assert torch.equal(message[:end], torch.cat(expected))
        assert message[end] == 255, "nothing is written behind a message"
        assert found == [0.0 if number == 2 else each for number, each in enumerate(sums)]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("summed", [False, True])
def test_a_value_that_is_not_finite_is_marked_where_the_format_marks_it(value: float, summed: bool) -> None:
    x = torch.ones(70_000)
    x[69_999] = value
    message = torch.zeros(70_001, dtype=torch.uint8)
    found = _native.pack_message([Packed(x, 0, 8, summed)], message)
    assert torch.equal(message, BitPack(1).encode(x))
    assert message[-1] == 1
    assert math.isfinite(found[0]) is not summed
