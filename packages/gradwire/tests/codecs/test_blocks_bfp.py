"""Block floating point against double precision and Python's integers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gradwire.codecs import Bfp, Codec

Roundtrip = Callable[[Codec, torch.Tensor], torch.Tensor]
Golden = Callable[[str], list[tuple[Codec, torch.Tensor, bytes]]]


def encode(x: torch.Tensor, codec: Bfp) -> bytes:
    values = x.tolist() + [0.0] * (-x.numel() % codec.block)
    blocks = [values[begin : begin + codec.block] for begin in range(0, len(values), codec.block)]
    return b"".join(_encode_block(block, codec.mantissa_bits) for block in blocks)


def _encode_block(block: list[float], bits: int) -> bytes:
    exponent, codes = 255, [0] * len(block)
    if all(math.isfinite(value) for value in block):
        largest = max(abs(value) for value in block)
        exponent = math.frexp(largest)[1] + 126 if largest >= 2.0**-95 else 0
        if exponent:
            most = 2**bits - 1
            scaled = [round(math.ldexp(value, bits - 1 + 127 - exponent)) for value in block]
            codes = [min(max(code, -most), most) for code in scaled]
    width = bits + 1
    number = sum((code % 2**width) << width * i for i, code in enumerate(codes))
    body: bytes = number.to_bytes(width * len(block) // 8, "little")
    return bytes([exponent]) + body


def decode(payload: bytes, n: int, codec: Bfp) -> list[float]:
    width, size = codec.mantissa_bits + 1, 1 + (codec.mantissa_bits + 1) * codec.block // 8
    values = []
    for i in range(n):
        record = payload[i // codec.block * size :][:size]
        field = int.from_bytes(record[1:], "little") >> width * (i % codec.block) & (2**width - 1)
        code = field - 2**width if field >> codec.mantissa_bits else field
        unit = 0.0 if record[0] == 0 else math.ldexp(1.0, record[0] - 127 - (codec.mantissa_bits - 1))
        values.append(math.nan if record[0] == 255 else code * unit)
    return values


CODECS = [Bfp(), Bfp(7, 8), Bfp(1, 8), Bfp(3, 16), Bfp(10, 64), Bfp(15, 1024)]


def samples() -> list[torch.Tensor]:
    rng = np.random.default_rng(8)
    chunks = [rng.laplace(0.0, 1e-2, n) * 10.0 ** rng.integers(-3, 3, n) for n in (0, 1, 8, 15, 16, 17, 1501)]
    chunks += [np.full(20, 2.0**-95), np.full(20, 2.0**-96), np.full(20, 3.4e38), np.array([0.99999994] * 9)]
    chunks += [np.where(np.arange(200) == 100, math.nan, 0.01), np.arange(-64, 64) + 0.5]
    return [torch.from_numpy(chunk.astype(np.float32)) for chunk in chunks]


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_payloads_and_values_are_those_of_the_formula(codec: Bfp, roundtrip: Roundtrip) -> None:
    for x in samples():
        payload = encode(x, codec)
        assert bytes(codec.encode(x).tolist()) == payload
        assert np.array_equal(roundtrip(codec, x).numpy(), decode(payload, x.numel(), codec), equal_nan=True)


def test_golden_vectors_are_those_of_the_formula(golden: Golden) -> None:
    for codec, x, payload in golden("bfp"):
        assert isinstance(codec, Bfp)
        assert encode(x, codec) == payload


def test_the_published_ratio_of_bfp16(laplace: torch.Tensor) -> None:
    assert 4 * laplace.numel() / Bfp(7, 16).encode(laplace).numel() == pytest.approx(16 * 32 / (16 * 8 + 8))
    assert pytest.approx(16 * 32 / (16 * 8 + 8), abs=0.01) == 3.76


def test_the_bound_is_reached_by_saturation(roundtrip: Roundtrip) -> None:
    x = torch.tensor([0.99999994])
    codec = Bfp(7, 16)
    error = abs(float(roundtrip(codec, x)) - float(x))
    assert 0.99 * codec.bound(x) < error <= codec.bound(x)


def test_only_the_block_with_a_nan_is_lost(roundtrip: Roundtrip) -> None:
    x = torch.ones(48)
    x[20] = -math.inf
    y = roundtrip(Bfp(7, 16), x)
    assert torch.equal(y.isnan(), (torch.arange(48) // 16) == 1)
    assert torch.equal(y[:16], torch.ones(16))


def test_any_exponent_decodes() -> None:
    codec = Bfp(7, 8)
    for exponent in range(256):
        payload = torch.tensor([exponent, 1, 255, 0, 0, 0, 0, 0, 0], dtype=torch.uint8)
        out = torch.full((8,), 7.0)
        codec.decode(payload, out)
        assert np.array_equal(out.numpy(), decode(bytes(payload.tolist()), 8, codec), equal_nan=True)
