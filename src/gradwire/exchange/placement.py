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

_SMALL = 64
"""Blocks of so few values are filled up in any case, since biases have no more values."""
_MOST_ZEROS = 0.125
"""Larger ones, if that takes no more zeros than this share of the values."""


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
    def borders(self) -> list[int]:
        """Where each parameter begins, and where the last one ends."""
        return [0, *accumulate(self.sizes)]

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


def placed(codec: Codec, counts: Sequence[int], chunks: int = 1) -> Placement:
    """Return where parameters lie that a codec encodes: each in blocks of its own, if that is cheap."""
    own, unit = tuple(counts), codec.parameter_unit
    apart = Placement(own, unit, chunks)
    few = sum(apart.sizes) <= (1 + _MOST_ZEROS) * sum(own)
    return apart if unit <= _SMALL or few else Placement(own)


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
