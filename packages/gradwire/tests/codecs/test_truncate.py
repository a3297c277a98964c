"""Truncation and Bitpack against bit strings made with Python's integers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gradwire.codecs import BitPack, Codec, Truncate
from gradwire.errors import PayloadError

Roundtrip = Callable[[Codec, torch.Tensor], torch.Tensor]
Golden = Callable[[str], list[tuple[Codec, torch.Tensor, bytes]]]


def encode(x: torch.Tensor, kept_bits: int) -> bytes:
    """One long number, value after value from its low end."""
    words: list[int] = x.numpy().view(np.uint32).tolist()
    number = sum((word >> 32 - kept_bits) << kept_bits * i for i, word in enumerate(words))
    marker = b"" if kept_bits > 8 else bytes([int(not bool(x.isfinite().all()))])
    return number.to_bytes(-(-kept_bits * x.numel() // 8), "little") + marker


def gradient(n: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(n).laplace(0.0, 0.1, n).astype(np.float32))


@pytest.mark.parametrize("dropped", range(1, 32))
def test_payloads_are_the_top_bits_one_after_the_other(dropped: int) -> None:
    for n in (0, 1, 2, 7, 8, 9, 31, 333):
        payload = Truncate(dropped).encode(gradient(n))
        assert bytes(payload.tolist()) == encode(gradient(n), 32 - dropped)


@pytest.mark.parametrize("dropped", range(1, 32))
def test_decoded_values_have_their_low_bits_cleared(dropped: int, roundtrip: Roundtrip) -> None:
    x = gradient(333)
    mask = np.uint32(0xFFFF_FFFF << dropped & 0xFFFF_FFFF)
    assert (
        roundtrip(Truncate(dropped), x).numpy().view(np.uint32).tolist()
        == (x.numpy().view(np.uint32) & mask).tolist()
    )


def test_golden_vectors_are_the_top_bits(golden: Golden) -> None:
    for codec, x, payload in golden("truncate") + golden("bitpack"):
        assert isinstance(codec, Truncate | BitPack)
        kept = 32 - codec.dropped_bits if isinstance(codec, Truncate) else 8 * codec.kept_bytes
        assert encode(x, kept) == payload


@pytest.mark.parametrize(("dropped", "ratio"), [(16, 2.0), (22, 3.2), (24, 4.0)])
def test_published_ratios(dropped: int, ratio: float, laplace: torch.Tensor) -> None:
    assert 4 * laplace.numel() / Truncate(dropped).encode(laplace).numel() == pytest.approx(ratio, rel=1e-4)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_bitpack_is_truncation_to_whole_bytes(kept: int) -> None:
    for n in (0, 1, 5, 333):
        packed = BitPack(kept).encode(gradient(n))
        assert torch.equal(packed, Truncate(32 - 8 * kept).encode(gradient(n)))
        planes = gradient(n).numpy().view(np.uint8).reshape(n, 4)[:, 4 - kept :]
        assert packed[: n * kept].tolist() == planes.flatten().tolist()


def test_bitpack_of_four_bytes_is_the_raw_floats() -> None:
    assert bytes(BitPack(4).encode(gradient(33)).tolist()) == gradient(33).numpy().tobytes()


@pytest.mark.parametrize("kept", [1, 4, 7, 8])
def test_a_cut_exponent_marks_the_chunk(kept: int, roundtrip: Roundtrip) -> None:
    codec = Truncate(32 - kept)
    x = gradient(20)
    x[7] = math.inf
    assert roundtrip(codec, x).isnan().all()
    x[7] = torch.finfo(torch.float32).max
    assert roundtrip(codec, x).isfinite().all()
    payload = codec.encode(x)
    payload[-1] = 2
    with pytest.raises(PayloadError, match="marker"):
        codec.decode(payload, torch.zeros(20))


def test_a_nan_whose_mantissa_is_cut_becomes_infinite(roundtrip: Roundtrip) -> None:
    x = torch.tensor([0x7F800001, 0x7FC00000], dtype=torch.int32).view(torch.float32)
    y = roundtrip(Truncate(16), x)
    assert y[0] == math.inf
    assert y[1].isnan()


def test_unused_bits_must_be_zero() -> None:
    payload = Truncate(27).encode(torch.zeros(1))
    payload[0] |= 0x80
    with pytest.raises(PayloadError, match="unused bits"):
        Truncate(27).decode(payload, torch.zeros(1))


@pytest.mark.parametrize("dropped", [1, 8, 16, 22, 23])
def test_the_bound_is_tight(dropped: int, roundtrip: Roundtrip) -> None:
    x = torch.tensor([0x3FFFFFFF], dtype=torch.int32).view(torch.float32)  # the last float below 2
    error = float((x - roundtrip(Truncate(dropped), x)).double())
    assert 0.49 * Truncate(dropped).bound(x) < error <= Truncate(dropped).bound(x)
