"""Gradients for benchmarks, made up or recorded; every rank knows all ranks' for the exact sum."""

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
"""Numbers that are drawn at most; longer buckets repeat them, further apart than any codec looks."""
_SMALLEST, _LARGEST = 1e-30, 1e30
"""Scales whose numbers, and sums of them, are normal float32."""
_GOLDEN = 0.6180339887498949
_DEFAULT_SCALES = {"laplace": 1e-3, "normal": 1.0}


@dataclass(frozen=True)
class DataSpec:
    """Values of buckets: ``laplace`` or ``normal`` with a ``scale``, or a recorded gradient's ``file``."""

    kind: str
    scale: float = 1.0
    file: Path | None = None

    @classmethod
    def parse(cls, text: str) -> DataSpec:
        """Read ``laplace:1e-3``, ``normal`` or ``FILE.pt``. Raises ``SpecError``."""
        if text.endswith(".pt"):
            return cls("file", file=Path(text))
        kind, colon, scale = text.partition(":")
        try:
            number = float(scale) if colon else _DEFAULT_SCALES[kind]
        except (KeyError, ValueError):
            number = math.nan
        if kind not in _DEFAULT_SCALES or not math.isfinite(number) or not number > 0:
            raise SpecError(f"--data is laplace:1e-3, normal:1 or FILE.pt, but got {shown(text)}")
        if not _SMALLEST <= number <= _LARGEST:
            raise SpecError(f"--data has a scale from {_SMALLEST:g} to {_LARGEST:g}, but got {shown(text)}")
        return cls(kind, number)

    def __str__(self) -> str:
        return f"{self.kind}:{self.scale:g}" if self.file is None else self.file.name


class Data:
    """The buckets of all ranks: windows into one pool of numbers, each rank's begins somewhere else.

    ``count`` is the longest bucket's elements. Raises ``SpecError`` for a file that holds no finite floats.
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
        """Return the sum of magnitudes, 1-D float32: no partial sum of any ranks is larger."""
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
    """Return all floats of a file that ``torch.save`` wrote: a tensor, or a list or dict of them, in order.

    Raises ``SpecError``.
    """
    try:
        with open_ordinary(file) as opened:
            loaded = torch.load(opened, map_location="cpu", weights_only=True)
    except OSError as error:
        raise SpecError(f"--data {file} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # torch.load raises anything for a damaged file
        raise SpecError(f"--data {file} is no file of tensors that torch.save wrote") from error
    if isinstance(loaded, dict):
        loaded = list(loaded.values())
    tensors = [loaded] if isinstance(loaded, torch.Tensor) else loaded
    if not isinstance(tensors, list | tuple) or not all(isinstance(it, torch.Tensor) for it in tensors):
        raise SpecError(f"--data {file} must hold a tensor, or a list or dict of tensors")
    floats = [it.detach().float().flatten() for it in tensors if it.is_floating_point()]
    pool = torch.cat(floats) if floats else torch.empty(0)
    if not pool.numel() or not pool.isfinite().all():
        raise SpecError(f"--data {file} must hold finite floats, and at least one")
    return pool
