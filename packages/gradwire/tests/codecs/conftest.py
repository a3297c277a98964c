"""What several codec tests need: gradient-like data, a round trip, the golden vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradwire.codecs import Codec, parse
from gradwire.plan import Plan

_GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def laplace() -> torch.Tensor:
    """A million draws of Laplace(1e-3), much like the gradients of a network."""
    return torch.from_numpy(np.random.default_rng(1).laplace(0.0, 1e-3, 1 << 20).astype(np.float32))


@pytest.fixture(scope="session")
def normal() -> torch.Tensor:
    """A million draws of a normal distribution with deviation 2e-3."""
    return torch.from_numpy(np.random.default_rng(2).normal(0.0, 2e-3, 1 << 20).astype(np.float32))


@pytest.fixture(scope="session")
def roundtrip() -> Callable[[Codec, torch.Tensor], torch.Tensor]:
    """Encode, decode, return what came back."""

    def there_and_back(codec: Codec, x: torch.Tensor) -> torch.Tensor:
        out = torch.full_like(x, 7.0)
        codec.decode(codec.encode(x), out)
        return out

    return there_and_back


@pytest.fixture(scope="session")
def golden() -> Callable[[str], list[tuple[Codec, torch.Tensor, bytes]]]:
    """Codec, input and payload of every golden vector of a row of the table."""

    def read(name: str) -> list[tuple[Codec, torch.Tensor, bytes]]:
        path = _GOLDEN / f"{name}.json"
        assert path.exists(), (
            f"{path} is missing: run `python packages/gradwire/tests/codecs/make_golden.py --write`"
        )
        vectors = json.loads(path.read_text())
        assert vectors
        return [(_codec(v), _floats(v["input"]), bytes.fromhex(v["payload"])) for v in vectors]

    return read


def _codec(vector: dict[str, Any]) -> Codec:
    """Return the codec that a spec names, or that a plan makes."""
    return parse(vector["spec"]) if "spec" in vector else Plan.from_json(json.dumps(vector["plan"])).encoding


def _floats(words: str) -> torch.Tensor:
    bits = np.array([int(word, 16) for word in words.split()], dtype=np.uint32)
    return torch.from_numpy(bits.view(np.float32))
