"""Synthetic or recorded gradients for benchmarks. Every rank can compute the buckets of all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gradwire.errors import SpecError, shown
from gradwire.files import open_ordinary

POOL = (1 << 22) + 9973
"""The maximum number of random values; longer buckets repeat them, further apart than a codec's block."""
_SMALLEST, _LARGEST = 1e-30, 1e30
"""The range of scales for which values and their sums are normal float32 numbers."""
_GOLDEN = 0.6180339887498949
_DEFAULT_SCALES = {"laplace": 1e-3, "normal": 1.0}


@dataclass(frozen=True)
class DataSpec:
    """The source of bucket values: ``laplace`` or ``normal`` with a ``scale``, or a gradient's ``file``."""

    kind: str
    scale: float = 1.0
    file: Path | None = None

    @classmethod
    def parse(cls, text: str) -> DataSpec:
        """Parse ``laplace:1e-3``, ``normal``, or ``FILE.pt``. Raises ``SpecError``."""
        if text.endswith(".pt"):
            return cls("file", file=Path(text))
        kind, colon, scale = text.partition(":")
        try:
            number = float(scale) if colon else _DEFAULT_SCALES[kind]
        except (KeyError, ValueError):
            number = math.nan
        if kind not in _DEFAULT_SCALES or not math.isfinite(number) or not number > 0:
            raise SpecError(
                f"expected --values such as laplace:1e-3, normal:1, or FILE.pt, got {shown(text)}; "
                "pass a distribution and its scale, or a file of tensors"
            )
        if not _SMALLEST <= number <= _LARGEST:
            raise SpecError(
                f"expected --values with a scale from {_SMALLEST:g} to {_LARGEST:g}, got {shown(text)}; "
                f"pass e.g. {kind}:1"
            )
        return cls(kind, number)

    def __str__(self) -> str:
        return f"{self.kind}:{self.scale:g}" if self.file is None else self.file.name


class Data:
    """The buckets of all ranks: views of one pool of numbers, at a different offset for each rank.

    ``count`` is the number of elements of the longest bucket. Raises ``SpecError`` for a file without finite
    floats.
    """

    def __init__(self, spec: DataSpec, count: int) -> None:
        if spec.file is not None:
            self._pool = load_gradient(spec.file)
        else:
            generator = np.random.default_rng(seed=0)
            drawn = getattr(generator, spec.kind)(0.0, spec.scale, min(count, POOL))
            self._pool = torch.from_numpy(drawn.astype(np.float32))

    def bucket(self, rank: int, count: int) -> torch.Tensor:
        """Return a rank's bucket, 1-D float32."""
        return torch.cat(list(self._pieces(rank, count)))

    def exact_sum(self, world: int, count: int) -> torch.Tensor:
        """Return the sum of the ranks' buckets, 1-D float64."""
        total = torch.zeros(count, dtype=torch.float64)
        for rank in range(world):
            total += self.bucket(rank, count)
        return total

    def envelope(self, world: int, count: int) -> torch.Tensor:
        """Return the sum of the ranks' magnitudes, 1-D float32, a bound on all partial sums."""
        total = torch.zeros(count)
        for rank in range(world):
            total += self.bucket(rank, count).abs_()
        return total

    def _pieces(self, rank: int, count: int) -> Iterator[torch.Tensor]:
        size = self._pool.numel()
        start = int(rank * _GOLDEN * size) % size
        while count > 0:
            piece = self._pool[start : start + count]
            yield piece
            count -= piece.numel()
            start = 0


def load_gradient(file: Path) -> torch.Tensor:
    """Return all floats of a tensor, list, or dict of tensors saved with ``torch.save``, in order.

    Raises ``SpecError``.
    """
    try:
        with open_ordinary(file) as opened:
            loaded = torch.load(opened, map_location="cpu", weights_only=True)
    except OSError as error:
        raise SpecError(
            f"--values {file} cannot be read: {error.strerror or error}; pass another file"
        ) from error
    except Exception as error:  # torch.load raises anything for a damaged file
        raise SpecError(
            f"--values {file} cannot be loaded; pass a file of tensors written with torch.save"
        ) from error
    if isinstance(loaded, dict):
        loaded = list(loaded.values())
    tensors = [loaded] if isinstance(loaded, torch.Tensor) else loaded
    if not isinstance(tensors, list | tuple) or not all(isinstance(it, torch.Tensor) for it in tensors):
        raise SpecError(
            f"expected tensors, or a list or dict of tensors, in --values {file}, got other objects; pass "
            "a file of tensors"
        )
    floats = [it.detach().float().flatten() for it in tensors if it.is_floating_point()]
    pool = torch.cat(floats) if floats else torch.empty(0)
    if not pool.numel() or not pool.isfinite().all():
        raise SpecError(
            f"expected finite floats in --values {file}, got other values or none; pass another file"
        )
    return pool
