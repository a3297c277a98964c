"""The cut of one flat gradient into buckets, so that its exchange begins before backward has ended.

Backward finishes the parameters in about the reverse of their order, so the first bucket is the end of the
buffer. Borders depend on sizes alone and are the same on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from gradwire.plan import bucket_members


@dataclass(frozen=True, slots=True)
class Bucket:
    """The elements ``start`` up to ``stop`` of the flat buffer: the gradients of ``parameters`` (numbers)."""

    start: int
    stop: int
    parameters: range

    @property
    def count(self) -> int:
        """The number of its floats."""
        return self.stop - self.start

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return this bucket's part of ``buffer``, the same memory."""
        return buffer[self.start : self.stop]


def cut(counts: Sequence[int], bucket_nbytes: int | None) -> list[Bucket]:
    """Cut parameters with these numbers of floats into buckets, as ``plan.bucket_members`` does."""
    starts = [0, *accumulate(counts)]
    return [
        Bucket(starts[members.start], starts[members.stop], members)
        for members in bucket_members(counts, bucket_nbytes)
    ]


# The floats of a parameter in a flat gradient: a complex element is two of them, as DDP hands it over.


def float_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a parameter's gradient in floats; that of ``torch.view_as_real`` if complex."""
    return (*parameter.shape, 2) if parameter.is_complex() else tuple(parameter.shape)


def floats_of(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient in floats, the same memory."""
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient


def float_count(parameter: torch.Tensor) -> int:
    """Return the number of floats of a parameter's gradient."""
    return math.prod(float_shape(parameter))


_FEW = 256


def is_zero(gradient: torch.Tensor) -> bool:
    """Return whether all values are 0; the first few tell for nearly every gradient that is used."""
    rest = gradient[_FEW:]
    if bool(gradient[:_FEW].any()):
        return False
    return rest.numel() == 0 or all(end == 0 for end in torch.aminmax(rest))  # several times as fast as any
