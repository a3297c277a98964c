"""16-bit floats against NumPy's and PyTorch's own conversions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gradwire.codecs import Bf16, Codec, Fp16

Roundtrip = Callable[[Codec, torch.Tensor], torch.Tensor]
Golden = Callable[[str], list[tuple[Codec, torch.Tensor, bytes]]]


@pytest.fixture(scope="module")
def numbers() -> torch.Tensor:
    """Every exponent with mantissas around the ties of both formats, both signs."""
    mantissas = [
        0,
        1,
        0x0FFF,
        0x1000,
        0x1001,
        0x2FFF,
        0x3000,
        0x3001,
        0x7FFF,
        0x8000,
        0x8001,
        0x17FFF,
        0x18000,
    ]
    mantissas += [0x7FEFFF, 0x7FF000, 0x7FFFFF, 0x7F7FFF, 0x7F8000]
    words = [sign << 31 | e << 23 | m for sign in (0, 1) for e in range(255) for m in mantissas]
    return torch.from_numpy(np.array(words, dtype=np.uint32).view(np.float32))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_fp16_is_the_conversion_of_numpy(numbers: torch.Tensor, roundtrip: Roundtrip) -> None:
    half = numbers.numpy().astype(np.float16)
    assert bytes(Fp16().encode(numbers).tolist()) == half.tobytes()
    assert np.array_equal(roundtrip(Fp16(), numbers).numpy(), half.astype(np.float32))


def test_bf16_is_the_conversion_of_torch(numbers: torch.Tensor, roundtrip: Roundtrip) -> None:
    half = numbers.to(torch.bfloat16)
    assert torch.equal(Bf16().encode(numbers), half.view(torch.uint8))
    assert torch.equal(roundtrip(Bf16(), numbers), half.to(torch.float32))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_golden_vectors_are_those_of_numpy_and_torch(golden: Golden) -> None:
    for _, x, payload in golden("fp16"):
        assert x.numpy().astype(np.float16).tobytes() == payload
    for _, x, payload in golden("bf16"):
        halves = torch.frombuffer(bytearray(payload), dtype=torch.bfloat16)
        assert torch.equal(halves.isnan(), x.isnan())  # which NaN is made is PyTorch's own choice
        assert torch.equal(halves[~x.isnan()], x[~x.isnan()].to(torch.bfloat16))


def test_every_half_comes_back_as_itself() -> None:
    payload = torch.arange(1 << 16).to(torch.uint16).view(torch.uint8)
    for codec, dtype in ((Fp16(), torch.float16), (Bf16(), torch.bfloat16)):
        out = torch.zeros(1 << 16)
        codec.decode(payload, out)
        expected = payload.view(dtype).to(torch.float32)
        assert torch.equal(out.isnan(), expected.isnan())
        assert torch.equal(out.nan_to_num(0.0), expected.nan_to_num(0.0))
        again = codec.encode(out).view(torch.int16)
        quiet = ~out.isnan()
        assert torch.equal(again[quiet], payload.view(torch.int16)[quiet])


@pytest.mark.parametrize(
    ("codec", "first"), [(Fp16(), 65520.0), (Bf16(), (2.0 - 2.0**-8) * 2.0**127)], ids=["fp16", "bf16"]
)
def test_overflow_is_infinite_and_the_bound_says_so(codec: Codec, first: float, roundtrip: Roundtrip) -> None:
    above = torch.tensor([first])
    below = torch.nextafter(above, torch.zeros(1))
    assert roundtrip(codec, below).isfinite().all()
    assert codec.bound(below) < math.inf
    assert roundtrip(codec, above)[0] == math.inf
    assert codec.bound(above) == math.inf


@pytest.mark.parametrize("value", [1.0, 1.999, 2.0**-14, 2.0**-20, 2.0**-24 * 1.5, 2.0**-25])
def test_fp16_bound_is_half_a_unit_in_the_last_place(value: float, roundtrip: Roundtrip) -> None:
    tie = torch.tensor([value + Fp16().bound(torch.tensor([value]))])
    error = abs(float(roundtrip(Fp16(), tie)) - float(tie))
    assert error <= Fp16().bound(tie) == max(2.0 ** (math.floor(math.log2(float(tie))) - 11), 2.0**-25)


def test_a_signalling_nan_stays_a_nan(roundtrip: Roundtrip) -> None:
    x = torch.tensor([0x7F800001, -0x7FFFFF], dtype=torch.int32).view(torch.float32)
    assert roundtrip(Fp16(), x).isnan().all()
    assert roundtrip(Bf16(), x).isnan().all()
