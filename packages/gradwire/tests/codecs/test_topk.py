"""The right values, exactly, and the right ones of equals."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gradwire.codecs import Codec, TopK
from gradwire.errors import PayloadError

Roundtrip = Callable[[Codec, torch.Tensor], torch.Tensor]
Golden = Callable[[str], list[tuple[Codec, torch.Tensor, bytes]]]


def encode(x: torch.Tensor, k: int) -> bytes:
    """By a stable sort."""
    magnitude = np.where(np.isfinite(x.numpy()), np.abs(x.numpy()), np.inf)
    if np.isinf(magnitude).sum() > k:
        return b"\xff\xff\xff\xff" * k + b"\x00\x00\xc0\x7f" * k
    chosen = np.sort(np.argsort(-magnitude, kind="stable")[:k])
    return chosen.astype(np.uint32).tobytes() + x.numpy()[chosen].tobytes()


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("n", [0, 1, 2, 10, 99, 1000])
def test_payloads_are_those_of_a_stable_sort(fraction: float, n: int) -> None:
    rng = np.random.default_rng(n)
    smooth = rng.normal(0.0, 1.0, n)
    ties = rng.integers(-3, 4, n).astype(np.float64)
    for values in (smooth, ties, np.where(rng.random(n) < 0.02, math.inf, ties)):
        x = torch.from_numpy(values.astype(np.float32))
        assert bytes(TopK(fraction).encode(x).tolist()) == encode(x, TopK(fraction).kept(n))


def test_golden_vectors_are_those_of_a_stable_sort(golden: Golden) -> None:
    for codec, x, payload in golden("topk"):
        assert isinstance(codec, TopK)
        assert encode(x, codec.kept(x.numel())) == payload


def test_the_share_is_the_decimal_as_written() -> None:
    assert math.ceil(0.07 * 100) == 8  # what floats would give
    assert TopK(0.07).kept(100) == 7
    assert TopK(0.01).kept(700) == 7
    assert TopK(0.01).kept(701) == 8
    assert TopK(1e-9).kept(5) == 1
    assert TopK(1.0).kept(5) == 5
    assert TopK(0.5).kept(0) == 0


def test_kept_values_are_exact_and_others_zero(laplace: torch.Tensor, roundtrip: Roundtrip) -> None:
    y = roundtrip(TopK(0.1), laplace)
    kept = y != 0
    assert int(kept.sum()) == math.ceil(0.1 * laplace.numel())
    assert torch.equal(y[kept], laplace[kept])
    assert laplace[kept].abs().min() >= laplace[~kept].abs().max() == TopK(0.1).bound(laplace)


def test_of_equals_the_lowest_index_wins(roundtrip: Roundtrip) -> None:
    assert roundtrip(TopK(0.5), torch.tensor([1.0, -1.0, 1.0, 1.0])).tolist() == [1.0, -1.0, 0.0, 0.0]


def test_a_few_infinities_are_carried_and_too_many_mark_the_chunk(roundtrip: Roundtrip) -> None:
    x = torch.tensor([1.0, math.nan, 2.0, -math.inf, 3.0, 4.0])
    y = roundtrip(TopK(0.5), x)
    assert y[1].isnan()
    assert y[[0, 2, 3, 4, 5]].tolist() == [0.0, 0.0, -math.inf, 0.0, 4.0]
    assert roundtrip(TopK(0.2), torch.tensor([math.nan, 1.0, math.inf, 2.0, math.nan])).isnan().all()


@pytest.mark.parametrize(
    "indices",
    [[1, 0], [1, 1], [0, 4], [0, 0x7FFFFFFF], [0, 0xFFFFFFFF], [0xFFFFFFFF, 1], [0xFFFFFFFF, 0xFFFFFFFF]],
)
def test_indices_that_no_encoder_makes_are_refused(indices: list[int]) -> None:
    payload = TopK(0.5).encode(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    payload[:8] = torch.frombuffer(bytearray(np.array(indices, dtype=np.uint32).tobytes()), dtype=torch.uint8)
    out = torch.full((4,), 7.0)
    with pytest.raises(PayloadError, match=r"increase strictly|quiet NaN"):
        TopK(0.5).decode(payload, out)
    assert (out == 7.0).all()
