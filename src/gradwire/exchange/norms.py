"""How much of a gradient a walk's encodings lose on this rank, by ranges of the bucket.

What is kept is sums of squares in float64 for every range: of the rank's own gradient, before a residual is
added, of what its encodings lost, over all hops, and of the values that they lost it from, before and after.
Whose ranges they are, its callers know.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from gradwire import _native
from gradwire._native import Pass
from gradwire.errors import TensorError


class Norms:
    """Sums of squares of one bucket's ranges; every walk that it is given to begins them anew.

    A sum is not finite exactly where a value is not. An exact codec loses nothing, so nothing is looked at
    then, and all sums are 0.

    Parameters
    ----------
    borders
        Where ranges begin and the last one ends: not falling, from 0 to the length of the bucket. Raises
        ``TensorError`` otherwise.

    Attributes
    ----------
    own
        Of this rank's gradient, for every range; 1-D float64.
    lost
        Of what its encodings lost, the same.
    encoded, decoded
        Of the partial sums that it has encoded, and of what others decode; 0 where a residual is kept.
    sums
        All four, one below the other.
    """

    def __init__(self, borders: Sequence[int]) -> None:
        if not borders or borders[0] != 0 or any(a > b for a, b in pairwise(borders)):
            raise TensorError(f"borders of ranges rise from 0 to the bucket's length, but are {[*borders]}")
        self.count = borders[-1]
        self._borders = torch.tensor(borders, dtype=torch.int64, device="cpu")
        self.sums = torch.zeros(4, len(borders) - 1, dtype=torch.float64, device="cpu")
        self.own, self.lost, self.encoded, self.decoded = self.sums

    def clear(self) -> None:
        """Begin anew."""
        self.sums.zero_()

    def look(self, gradient: torch.Tensor) -> None:
        """Take in this rank's own gradient, all of the bucket."""
        _native.sum_norms(Pass.LOOK, gradient, gradient, 0, self._borders, self.own)

    def add(self, gradient: torch.Tensor, residual: torch.Tensor) -> None:
        """Take in this rank's own gradient, then add its residual to it: one pass for both."""
        _native.sum_norms(Pass.ADD, gradient, residual, 0, self._borders, self.own)

    def compare(self, elements: torch.Tensor, decoded: torch.Tensor, start: int) -> None:
        """Take in ``elements``, which begin at ``start`` and have been encoded, and what is decoded."""
        _native.sum_norms(Pass.LOOK, elements, elements, start, self._borders, self.encoded)
        _native.sum_norms(Pass.LOOK, decoded, decoded, start, self._borders, self.decoded)

    def subtract(self, elements: torch.Tensor, decoded: torch.Tensor, start: int) -> float:
        """Let ``decoded`` be what ``elements``, which begin at ``start``, lost; return its sum of squares."""
        return _native.sum_norms(Pass.SUBTRACT, elements, decoded, start, self._borders, self.lost)

    def adopt(self, elements: torch.Tensor, decoded: torch.Tensor, start: int) -> float:
        """Do what ``subtract`` does, but let ``elements`` have the decoded values."""
        return _native.sum_norms(Pass.ADOPT, elements, decoded, start, self._borders, self.lost)


def check_norms(norms: Norms, tensor: torch.Tensor) -> None:
    """Raise ``TensorError`` unless the ranges of ``norms`` are those of ``tensor``."""
    if norms.count != tensor.numel():
        raise TensorError(
            f"the ranges of norms must end where the tensor does, at {tensor.numel()}, but end at "
            f"{norms.count}; make Norms from the borders of this bucket's parameters"
        )
