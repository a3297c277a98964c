"""Quantisation by blocks against NumPy in single precision."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gradwire.codecs import Codec, Quantize
from gradwire.errors import PayloadError

Roundtrip = Callable[[Codec, torch.Tensor], torch.Tensor]
Golden = Callable[[str], list[tuple[Codec, torch.Tensor, bytes]]]
QUIET_NAN = np.array([0x7FC00000], dtype=np.uint32).view(np.float32)[0]


def encode(x: torch.Tensor, codec: Quantize) -> bytes:
    """Scales, then codes, by the formula."""
    scales, codes = [], []
    for begin in range(0, x.numel(), codec.block):
        scale, block_codes = _encode_block(
            x.numpy()[begin : begin + codec.block], 127 if codec.bits == 8 else 7
        )
        scales.append(scale)
        codes += block_codes
    if codec.bits == 4:
        codes += [0] * (len(codes) % 2)
        codes = [low & 15 | (high & 15) << 4 for low, high in zip(codes[::2], codes[1::2], strict=True)]
    return np.array(scales, dtype=np.float32).tobytes() + bytes(code & 0xFF for code in codes)


def _encode_block(
    block: np.ndarray[tuple[int], np.dtype[np.float32]], qmax: int
) -> tuple[np.float32, list[int]]:
    if not np.isfinite(block).all():
        return QUIET_NAN, [0] * block.size
    largest = np.abs(block).max()
    if largest < 2.0**-100:
        return np.float32(0.0), [0] * block.size
    scale = (np.float32(largest / np.float32(qmax)).view(np.uint32) & np.uint32(0xFFFFFF00)).view(np.float32)
    codes = np.rint(block * (np.float32(1.0) / scale)).clip(-qmax, qmax)
    return scale, codes.astype(int).tolist()


CODECS = [Quantize(8), Quantize(4), Quantize(8, 16), Quantize(4, 48)]


def samples() -> list[torch.Tensor]:
    rng = np.random.default_rng(7)
    chunks = [rng.laplace(0.0, 1e-2, n) * 10.0 ** rng.integers(-3, 3, n) for n in (0, 1, 2, 15, 16, 17, 3001)]
    chunks += [np.full(50, 2.0**-101), np.full(50, 2.0**-100), np.full(50, 3.4e38), np.full(5, -0.0)]
    chunks += [np.where(np.arange(2000) == 1500, math.nan, 0.01), np.array([math.inf, 1.0])]
    return [torch.from_numpy(chunk.astype(np.float32)) for chunk in chunks]


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_payloads_are_those_of_the_formula(codec: Quantize) -> None:
    for x in samples():
        assert bytes(codec.encode(x).tolist()) == encode(x, codec)


def test_decoded_values_are_code_times_scale(normal: torch.Tensor, roundtrip: Roundtrip) -> None:
    x = normal[:5000]
    payload = Quantize(8).encode(x).numpy()
    scales, codes = payload[:20].view(np.float32), payload[20:].view(np.int8)
    expected = codes * np.repeat(scales, 1024)[:5000].astype(np.float64)
    assert np.array_equal(roundtrip(Quantize(8), x).numpy().astype(np.float64), expected)


def test_golden_vectors_are_those_of_the_formula(golden: Golden) -> None:
    for codec, x, payload in golden("quantize"):
        assert isinstance(codec, Quantize)
        assert encode(x, codec) == payload


@pytest.mark.parametrize("bits", [8, 4])
def test_errors_reach_half_a_step_and_no_more(bits: int, normal: torch.Tensor, roundtrip: Roundtrip) -> None:
    codec = Quantize(bits)
    blocks = normal.view(-1, codec.block)
    step = blocks.abs().amax(dim=1, keepdim=True).double() / (127 if bits == 8 else 7)
    error = (roundtrip(codec, normal) - normal).view_as(blocks).double().abs()
    assert (error <= 0.51 * step).all()
    assert float((error / step).max()) > 0.49


def test_the_largest_value_is_kept_nearly_exactly(roundtrip: Roundtrip) -> None:
    for x in (
        torch.tensor([1.0, 0.3]),
        torch.tensor([-0.1, 0.0]),
        torch.tensor([torch.finfo(torch.float32).max]),
    ):
        y = roundtrip(Quantize(8), x)
        assert y.isfinite().all()
        assert y[0] == pytest.approx(float(x[0]), rel=2**-15)


def test_only_the_block_with_a_nan_is_lost(roundtrip: Roundtrip) -> None:
    x = torch.ones(64)
    x[20] = math.nan
    y = roundtrip(Quantize(8, 16), x)
    assert y[16:32].isnan().all()
    assert torch.allclose(y[:16], torch.ones(16), rtol=2**-14)
    assert torch.allclose(y[32:], torch.ones(32), rtol=2**-14)


@pytest.mark.parametrize(("bits", "code"), [(8, 0x80), (4, 0x08), (4, 0x80)])
def test_the_code_that_no_encoder_makes_is_refused(bits: int, code: int) -> None:
    payload = Quantize(bits).encode(torch.ones(2))
    payload[4] = code
    with pytest.raises(PayloadError, match="code is out of range"):
        Quantize(bits).decode(payload, torch.zeros(2))


@pytest.mark.parametrize("scale", [-1.0, math.inf, -math.inf, -math.nan])
def test_a_scale_that_no_encoder_makes_is_refused(scale: float) -> None:
    payload = Quantize(8).encode(torch.ones(2))
    payload[:4] = torch.frombuffer(bytearray(np.float32(scale).tobytes()), dtype=torch.uint8)
    with pytest.raises(PayloadError, match="scale"):
        Quantize(8).decode(payload, torch.zeros(2))


@pytest.mark.parametrize(("spec_bits", "ratio"), [(8, 3.98), (4, 7.94)])
def test_ratios(spec_bits: int, ratio: float, laplace: torch.Tensor) -> None:
    assert 4 * laplace.numel() / Quantize(spec_bits).encode(laplace).numel() == pytest.approx(ratio, abs=0.01)
