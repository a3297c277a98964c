"""Where one flat gradient is cut, so that its exchange can begin before backward has ended.

Backward finishes the parameters in about the reverse of their order, so the first bucket is the end of the
buffer. Borders depend on sizes alone and are the same on every rank.
"""

from __future__ import annotations

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
        """How many floats it holds."""
        return self.stop - self.start

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return this bucket's part of ``buffer``, the same memory."""
        return buffer[self.start : self.stop]


def cut(counts: Sequence[int], bucket_nbytes: int | None) -> list[Bucket]:
    """Cut parameters of so many floats into buckets, as ``plan.bucket_members`` does."""
    starts = [0, *accumulate(counts)]
    return [
        Bucket(starts[members.start], starts[members.stop], members)
        for members in bucket_members(counts, bucket_nbytes)
    ]
