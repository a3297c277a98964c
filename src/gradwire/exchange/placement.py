"""Where parameters lie that are exchanged together: side by side, or each at the beginning of a block.

A block of a codec has one scale. Where it covers the end of one parameter and the beginning of another, which
may be a thousand times smaller, the smaller one vanishes.
"""

from __future__ import annotations

from collections.abc import Sequence
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
