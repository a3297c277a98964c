"""The share of a gradient's norm that encoding lost: whose it is, and in which steps it is measured."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch

from gradwire.exchange import Norms

_FIRST, _EVERY = 2, 64
_ROUNDING = 0.25
"""Up to this part of what was encoded may vanish in rounding."""


def sampled(step: int) -> bool:
    """Return whether a step, counted from 1 up, is measured if that isn't free; the same on all ranks.

    The steps 2, 4, 8, 16 and 32, and then every 64th: enough to speak early in a short run, at a cost that
    hundreds of steps share in a long one.
    """
    return step % _EVERY == 0 or (step >= _FIRST and step & (step - 1) == 0)


def share_of(own: float, lost: float) -> float | None:
    """Return the lost norm divided by the own one, from their squares; 0/0 is 0, and None stands for x/0."""
    if lost == 0:
        return 0.0
    return math.sqrt(lost / own) if own else None


@dataclass(frozen=True)
class Layout:
    """Where the parameters lie in a bucket.

    Attributes
    ----------
    names
        The parameters, in their order in the bucket.
    counts
        How many floats each has.
    groups
        With which others each belongs together, in whatever words; of a group one warning tells.
    copies
        How often this repeats: FSDP lays out a part of every parameter for each rank.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    groups: tuple[Hashable, ...]
    copies: int = 1

    @cached_property
    def norms(self) -> Norms:
        """What an exchange of the bucket measures with, until the next one does."""
        return Norms([0, *accumulate(self.counts * self.copies)])


def is_rounding(encoded: float, decoded: float, lost: float) -> bool:
    """Return whether what was lost is rounding, which averages out over steps, from sums of squares.

    Rounding is nearly orthogonal to what is rounded, and smaller. Where most values become 0 what is lost is
    the values themselves: ``<lost, encoded> / <encoded, encoded>``, by the law of cosines, is near 1 then.
    And where more is lost than there was, noise has taken the place of the gradient.
    """
    vanished = (encoded + lost - decoded) / 2
    return lost <= encoded and vanished <= _ROUNDING * encoded


@dataclass(frozen=True, slots=True)
class Measured:
    """What one exchange has measured: sums of squares, float64.

    ``sums`` has a row for each of this rank's gradient, what was lost of it, what was encoded and what was
    decoded, and a column for each parameter. ``own`` and ``lost`` are the sums of the first two rows.
    """

    layout: Layout
    sums: torch.Tensor
    own: float
    lost: float

    @classmethod
    def of(cls, layout: Layout, sums: torch.Tensor) -> Measured:
        """Copy what an exchange has measured."""
        by_parameter = sums.view(len(sums), layout.copies, -1).sum(1)
        own, lost, *_ = by_parameter.sum(1).tolist()
        return cls(layout, by_parameter, own, lost)

    @property
    def usable(self) -> bool:
        """Whether all was finite; the step is no sample otherwise."""
        return math.isfinite(self.own + self.lost)

    def shares(self) -> Iterator[tuple[str, Hashable, float | None, bool]]:
        """Yield every parameter's name, its group, the share it lost and whether that is mere rounding."""
        sums = self.sums.T.tolist()
        for name, group, (own, lost, encoded, decoded) in zip(
            self.layout.names, self.layout.groups, sums, strict=True
        ):
            yield name, group, share_of(own, lost), is_rounding(encoded, decoded, lost)
