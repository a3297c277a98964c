"""Values that lie elsewhere than they are exchanged: a walk copies each segment when it needs it, and back.

So a bucket's first frame leaves before the rest is copied, what is copied is in the cache when it is encoded,
and most copies pass while frames are on their way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gradwire.exchange.placement import Placement


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
