"""inceptionn's bursts are found in long payloads, piece by piece, exactly where the definition finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gradwire import _native
from gradwire.codecs import Inceptionn
from gradwire.errors import PayloadError

CODEC = Inceptionn(2.0**-10)
PIECE_NBYTES = 256  # kPieceNbytes in native/kernels/burst_walk.h
FAST = [name for name in _native.available_targets() if name != "scalar"]
pytestmark = pytest.mark.skipif(not FAST, reason="this machine runs nothing but the definition")


def chunk(kind: str, n: int) -> torch.Tensor:
    rng = np.random.default_rng(n)
    makers: dict[str, Callable[[], Any]] = {
        "zeros": lambda: np.zeros(n),
        "dense": lambda: rng.normal(0, 10, n),
        "gradient": lambda: rng.laplace(0, 1e-3, n),
        "runs": lambda: rng.laplace(0, 1, n) * (rng.random(-(-n // 50)).repeat(50)[:n] < 0.3),
        "all sizes": lambda: rng.choice([0.0, 2.0**-8, 0.25, 3.0], n, p=[0.4, 0.2, 0.2, 0.2]),
    }
    return torch.from_numpy(makers[kind]().astype(np.float32))


KINDS = ["zeros", "dense", "gradient", "runs", "all sizes"]


def outcome(payload: torch.Tensor, n: int, target: str) -> bytes:
    out = torch.full((n,), 7.0)
    with _native.use_target(target):
        try:
            CODEC.decode_add(payload, out)
        except PayloadError as error:
            assert (out == 7.0).all(), "a refused payload was written"
            return str(error).encode()
    return out.numpy().tobytes()


def assert_alike(payload: torch.Tensor, n: int, *, valid: bool) -> None:
    wanted = outcome(payload, n, "scalar")
    assert (b"got an invalid payload" not in wanted) == valid
    for target in FAST:
        assert outcome(payload, n, target) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_payloads_of_many_pieces_decode_as_by_the_definition(kind: str) -> None:
    for n in (*range(16_000, 16_050, 7), 50_001):
        payload = CODEC.encode(chunk(kind, n))
        assert payload.numel() > 10 * PIECE_NBYTES
        assert_alike(payload, n, valid=True)


@pytest.mark.parametrize("kind", KINDS)
def test_payloads_that_end_near_the_border_of_a_piece_are_refused(kind: str) -> None:
    x = chunk(kind, 50_000)
    payload = CODEC.encode(x)
    pieces = payload.numel() // PIECE_NBYTES
    for border in range(PIECE_NBYTES, payload.numel() - 60, (1 + pieces // 5) * PIECE_NBYTES):
        for nbytes in range(border - 3, border + 60, 3):
            assert_alike(payload[:nbytes].clone(), 50_000, valid=False)
    for missing in range(1, 60):
        assert_alike(payload[:-missing].clone(), 50_000, valid=False)
    assert_alike(torch.cat([payload, payload[:1]]), 50_000, valid=False)


@pytest.mark.parametrize("kind", KINDS)
def test_altered_tags_have_the_same_outcome_everywhere(kind: str) -> None:
    rng = np.random.default_rng(8)
    payload = CODEC.encode(chunk(kind, 20_000))
    for _ in range(60):
        altered = payload.clone()
        altered[int(rng.integers(payload.numel()))] ^= int(rng.integers(1, 256))
        wanted = outcome(altered, 20_000, "scalar")
        assert all(outcome(altered, 20_000, target) == wanted for target in FAST)
