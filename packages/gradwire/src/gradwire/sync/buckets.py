"""The division of one flat gradient into buckets, so that its exchange begins before backward has ended.

Backward computes the gradients in roughly the reverse order of the parameters, so the first bucket is the end
of the buffer. Boundaries depend only on sizes and are the same on every rank.
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
    """A range of the flat buffer, ``start`` to ``stop``: the gradients of ``parameters`` (numbers)."""

    start: int
    stop: int
    parameters: range

    @property
    def count(self) -> int:
        """The number of floats in the bucket."""
        return self.stop - self.start

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return this bucket's part of ``buffer``, as a view."""
        return buffer[self.start : self.stop]


def cut(counts: Sequence[int], bucket_nbytes: int | None) -> list[Bucket]:
    """Divide parameters of ``counts`` floats into buckets, as ``plan.bucket_members`` does."""
    starts = [0, *accumulate(counts)]
    return [
        Bucket(starts[members.start], starts[members.stop], members)
        for members in bucket_members(counts, bucket_nbytes)
    ]


# The floats of a parameter in a flat gradient: a complex element is two floats, as in DDP's buckets.


def float_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a parameter's gradient in floats, as ``torch.view_as_real`` has it if complex."""
    return (*parameter.shape, 2) if parameter.is_complex() else tuple(parameter.shape)


def floats_of(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as floats, as a view."""
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient


def float_count(parameter: torch.Tensor) -> int:
    """Return the number of floats in a parameter's gradient."""
    return math.prod(float_shape(parameter))


_FEW = 256


def is_zero(gradient: torch.Tensor) -> bool:
    """Return whether all values are 0; the first few values decide for nearly every used gradient."""
    rest = gradient[_FEW:]
    if bool(gradient[:_FEW].any()):
        return False
    return rest.numel() == 0 or all(end == 0 for end in torch.aminmax(rest))  # several times faster than any
