"""A link whose transport sums."""

from __future__ import annotations

from typing import Any

import torch

from gradwire.links import Link
from gradwire.links.base import Wrapper


class Summing(Wrapper):
    """A link whose transport sums equal tensors; it notes what it was asked to."""

    HAS_ALL_REDUCE = True

    def __init__(self, inner: Link) -> None:
        super().__init__(inner)
        self.isend, self.irecv = inner.isend, inner.irecv  # type: ignore[method-assign]
        self.summed: list[int] = []

    def isend(self, to: int, frame: torch.Tensor) -> Any: ...
    def irecv(self, source: int, buffer: torch.Tensor) -> Any: ...

    def all_reduce(self, tensor: torch.Tensor, timeout_s: float | None = None) -> None:  # noqa: ARG002
        """Sum a tensor that is the same on all ranks."""
        self.summed.append(tensor.numel())
        tensor.mul_(self.world)
