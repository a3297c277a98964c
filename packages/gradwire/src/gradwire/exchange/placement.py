"""Where parameters lie that are exchanged together: side by side, or each at the beginning of a block.

A block of a codec has one scale. Where it covers the end of one parameter and the beginning of another, which
may be a thousand times smaller, the smaller one vanishes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch

from gradwire.codecs import Codec

_MOST_ZEROS = 0.125
"""Parameters begin blocks of their own if that takes no more zeros than this share of the values."""


@dataclass(frozen=True)
class Placement:
    """Places parameters of these ``counts`` one after the other, each at a multiple of ``unit`` values.

    Zeros are between them; and behind the last one, so that each of as many ``chunks`` as an algorithm cuts
    begins at a multiple, too.
    """

    counts: tuple[int, ...]
    unit: int = 1
    chunks: int = 1

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """What each parameter takes, with the zeros behind it."""
        taken = [_up(count, self.unit) for count in self.counts[:-1]]
        begun = sum(taken)
        whole = self.unit if self.unit == 1 else self.unit * self.chunks
        return (*taken, *(_up(begun + count, whole) - begun for count in self.counts[-1:]))

    @property
    def is_dense(self) -> bool:
        """Whether no zeros are between parameters."""
        return self.sizes == self.counts

    @property
    def filled(self) -> float:
        """The share that the parameters have of all values."""
        return sum(self.counts) / max(sum(self.sizes), 1)

    @cached_property
    def borders(self) -> tuple[int, ...]:
        """Where each parameter begins, and where the last one ends."""
        return (0, *accumulate(self.sizes))

    def joined(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a copy of 1-D parameters in their places."""
        if self.is_dense:
            return torch.cat([*parameters])
        zeros = parameters[0].new_zeros(self.unit * self.chunks)
        gaps = [zeros[: size - count] for size, count in zip(self.sizes, self.counts, strict=True)]
        return torch.cat([part for both in zip(parameters, gaps, strict=True) for part in both])

    def apart(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return views of the parameters in what ``joined`` has returned."""
        parts = torch.split(values, [*self.sizes])
        return [part[:count] for part, count in zip(parts, self.counts, strict=True)]


def unit_of(codec: Codec, counts: Sequence[int], world: int) -> int:
    """Return at a multiple of how many values parameters begin that are in a bucket of these.

    It is the same for all algorithms, which cut up to ``world`` chunks, and for all parts of the bucket.
    """
    apart = Placement(tuple(counts), codec.parameter_unit, world)
    return apart.unit if sum(apart.sizes) <= (1 + _MOST_ZEROS) * sum(counts) else 1


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


# Values that lie elsewhere than they are exchanged: a walk copies each segment when it needs it, and back.
#
# So a bucket's first frame leaves before the rest is copied, what is copied is in the cache when it is
# encoded,
# and most copies pass while frames are on their way.


@dataclass(frozen=True)
class Pieces:
    """Where parameters lie in a bucket, as ``ranges``, and where in what is exchanged."""

    ranges: Sequence[tuple[int, int]]
    placement: Placement

    def between(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield what lies there: where it begins in the bucket, how many values, how many zeros behind."""
        borders, counts = self.placement.borders, self.placement.counts
        number = bisect_right(borders, start) - 1
        while number < len(counts) and borders[number] < stop:
            begin, end = max(start - borders[number], 0), min(stop, borders[number + 1]) - borders[number]
            if end > begin:
                values = max(min(end, counts[number]) - begin, 0)
                yield self.ranges[number][0] + begin, values, end - begin - values
            number += 1


class Copies:
    """The copies of one walk: from ``bucket`` to ``values``, the tensor that is exchanged, and back."""

    def __init__(self, bucket: torch.Tensor, values: torch.Tensor, pieces: Pieces) -> None:
        self._bucket, self._values, self._pieces = bucket, values, pieces
        self._here = set[tuple[int, int]]()

    def bring(self, start: int, stop: int) -> None:
        """Copy these values of the bucket to their places, unless that was done."""
        if (start, stop) in self._here or start == stop:
            return
        self._here.add((start, stop))
        parts = list[torch.Tensor]()
        for first, count, zeros in self._pieces.between(start, stop):
            if count:
                parts.append(self._bucket[first : first + count])
            if zeros:
                parts.append(self._bucket.new_zeros(zeros))
        torch.cat(parts, out=self._values[start:stop])

    def take_back(self, start: int, stop: int) -> None:
        """Copy these values, which are final, to the bucket."""
        for first, count, zeros in self._pieces.between(start, stop):
            self._bucket[first : first + count] = self._values[start : start + count]
            start += count + zeros
