"""Where one flat gradient is cut, so that its exchange can begin before backward has ended.

Backward finishes the parameters in about the reverse of their order, so the first bucket is the end of the
buffer. Borders depend on sizes alone and are the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from gradwire.plan import FLOAT_NBYTES


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
    """Cut parameters of so many floats into buckets, in the order of their exchange.

    Parameters
    ----------
    counts
        The sizes of the parameters in the order of the buffer, at least one.
    bucket_nbytes
        The most bytes in a bucket; a parameter that is larger has a bucket of its own. None: all in one.
    """
    starts = [0, *accumulate(counts)]
    buckets: list[Bucket] = []
    stop = len(counts)
    for first in reversed(range(len(counts))):
        whole = first == 0
        if not whole and bucket_nbytes is not None:
            whole = FLOAT_NBYTES * (starts[stop] - starts[first - 1]) > bucket_nbytes
        if whole:
            buckets.append(Bucket(starts[first], starts[stop], range(first, stop)))
            stop = first
    return buckets
