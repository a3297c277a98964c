"""Results of the version before the split (tests/golden), and how others compare with them."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from support.project import ROOT

FOLDER = ROOT / "tests" / "golden"
LATER = {"jitter_s": "0.0", "loss": "0.0"}
"""Fields that topologies have had only since the split, with the values that mean no change."""


def load(name: str) -> dict[str, Any]:
    """Return one of the golden JSON files."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def draws_alike() -> bool:
    """Return whether this machine's generator draws the floats that the golden results were made from."""
    found: bool = plain(chunk(1000))[-1] == load("codecs")["0 identity 1000"][1]
    return found


def chunk(count: int) -> torch.Tensor:
    """Return the golden chunk of 1, 1,000 or 70,000 floats."""
    seed = {1: 1, 1000: 2, 70_000: 3}[count]
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 1e-3


def plain(value: Any) -> Any:
    """Return data that JSON can hold: of a tensor its dtype, its shape and a hash of its bytes."""
    if isinstance(value, torch.Tensor):
        content = value.detach().cpu().contiguous()
        octets = content.reshape(-1).view(torch.uint8).numpy().tobytes() if content.numel() else b""
        digest = hashlib.sha256(octets).hexdigest() if octets else ""
        return ["tensor", str(content.dtype), list(content.shape), digest]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return repr(value)
    if hasattr(value, "to_json"):
        return ["json", json.loads(value.to_json())]
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__name__, {each.name: plain(getattr(value, each.name)) for each in fields(value)}]
    return type(value).__name__


def difference(golden: Any, found: Any, place: str = "") -> str | None:
    """Return the first place where plain data differ, or None; the last digits of numbers may differ."""
    if isinstance(golden, dict) and isinstance(found, dict):
        found = {key: each for key, each in found.items() if key in golden or LATER.get(key) != each}
    if isinstance(golden, dict) and isinstance(found, dict) and golden.keys() == found.keys():
        pairs = [(key, golden[key], found[key]) for key in golden]
    elif isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        pairs = [(str(number), *pair) for number, pair in enumerate(zip(golden, found, strict=True))]
    elif golden == found or (
        isinstance(golden, float) and isinstance(found, float) and math.isclose(golden, found, rel_tol=1e-6)
    ):
        return None
    else:
        return f"at {place or '/'}: expected {str(golden)[:200]}, got {str(found)[:200]}"
    return next(filter(None, (difference(one, other, f"{place}/{key}") for key, one, other in pairs)), None)
