"""Coins that are fair, repeatable and different at the next step."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gradwire import _native
from gradwire.codecs import Codec, TernGrad
from gradwire.errors import PayloadError

Roundtrip = Callable[[Codec, torch.Tensor], torch.Tensor]
Golden = Callable[[str], list[tuple[Codec, torch.Tensor, bytes]]]


def encode(x: torch.Tensor, seed: int) -> bytes:
    """The payload by the card: coins from SplitMix64 over seed, checksum and index."""
    if not bool(x.isfinite().all()):
        return np.array([0x7FC00000], dtype=np.uint32).tobytes() + bytes(-(-x.numel() // 4))
    scale = np.float32(x.abs().max()) if x.numel() else np.float32(0.0)
    key = seed ^ _native.crc32c(x.view(torch.uint8))
    codes = bytearray(-(-x.numel() // 4))
    for i, value in enumerate(x.numpy()):
        if scale and _coin(key, i) < float(abs(value) / scale):
            codes[i // 4] |= (2 if value < 0 else 1) << 2 * (i % 4)
    return bytes(scale.tobytes()) + bytes(codes)


def _coin(key: int, index: int) -> float:
    mask = 2**64 - 1
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return ((z ^ z >> 31) >> 40) * 2.0**-24


def test_golden_vectors_are_those_of_the_card(golden: Golden) -> None:
    for codec, x, payload in golden("terngrad"):
        assert isinstance(codec, TernGrad)
        assert encode(x, codec.seed) == payload


def test_payloads_are_those_of_the_card(laplace: torch.Tensor) -> None:
    for n in (1, 2, 5, 1000):
        for seed in (0, 7, 2**64 - 1):
            assert bytes(TernGrad(seed).encode(laplace[:n]).tolist()) == encode(laplace[:n], seed)


def test_the_mean_over_many_seeds_is_the_value(roundtrip: Roundtrip) -> None:
    x = torch.tensor([1.0, -0.75, 0.5, -0.25, 0.1, 0.01, 0.0, -1.0])
    draws = 4000
    mean = torch.stack([roundtrip(TernGrad(seed), x) for seed in range(draws)]).double().mean(dim=0)
    deviation = (x.double().abs() * (1 - x.double().abs()) / draws).sqrt()
    assert ((mean - x.double()).abs() <= 5 * deviation + 1e-6).all()


def test_a_long_chunk_has_the_right_mean_and_share_of_nonzeros(
    laplace: torch.Tensor, roundtrip: Roundtrip
) -> None:
    y = roundtrip(TernGrad(), laplace)
    scale = float(laplace.abs().max())
    share = laplace.double().abs() / scale
    deviation = float((share * (1 - share)).sum().sqrt())
    assert set(y.tolist()) <= {0.0, scale, -scale}
    assert abs(float((y != 0).sum()) - float(share.sum())) < 5 * deviation
    assert abs(float(y.double().sum() - laplace.double().sum())) < 5 * deviation * scale


def test_coins_of_neighbours_and_of_the_next_step_are_independent(roundtrip: Roundtrip) -> None:
    half = torch.full((100_000,), 0.5)
    half[0] = 1.0
    first = (roundtrip(TernGrad(), half) != 0).double()[1:]
    half[0] = -1.0
    second = (roundtrip(TernGrad(), half) != 0).double()[1:]
    for left, right in ((first, second), (first[:-1], first[1:])):
        assert abs(float(((left - 0.5) * (right - 0.5)).mean())) < 5 * 0.25 / math.sqrt(left.numel())


def test_the_same_chunk_gives_the_same_coins_and_another_seed_others(laplace: torch.Tensor) -> None:
    x = laplace[:1000]
    assert torch.equal(TernGrad(1).encode(x), TernGrad(1).encode(x.clone()))
    assert not torch.equal(TernGrad(1).encode(x), TernGrad(2).encode(x))


def test_the_largest_value_is_never_dropped(roundtrip: Roundtrip) -> None:
    for seed in range(50):
        assert roundtrip(TernGrad(seed), torch.tensor([-3.0, 0.0])).tolist() == [-3.0, 0.0]


def test_one_nan_turns_the_chunk_into_nan(roundtrip: Roundtrip) -> None:
    assert roundtrip(TernGrad(), torch.tensor([1.0, math.nan, 2.0])).isnan().all()


@pytest.mark.parametrize(
    ("at", "value", "reason"), [(4, 3, "code is 3"), (4, 64, "unused"), (3, 255, "scale")]
)
def test_what_no_encoder_makes_is_refused(at: int, value: int, reason: str) -> None:
    payload = TernGrad().encode(torch.ones(3))
    payload[at] = value
    with pytest.raises(PayloadError, match=reason):
        TernGrad().decode(payload, torch.zeros(3))
