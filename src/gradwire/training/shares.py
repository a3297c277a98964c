"""The share of a gradient's norm that encoding lost: whose it is, and in which steps it is measured."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gradwire.exchange import Norms

_FIRST, _EVERY = 2, 64


def sampled(step: int) -> bool:
    """Tell whether a step, counted from 1 up, is measured where nothing makes that free; alike on all ranks.

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

    names: Sequence[str]
    counts: Sequence[int]
    groups: Sequence[Hashable]
    copies: int = 1

    def norms(self) -> Norms:
        """Return what an exchange of the bucket measures with."""
        return Norms([0, *accumulate([*self.counts] * self.copies)])


@dataclass(frozen=True, slots=True)
class Measured:
    """Sums of squares, by parameter, of one exchange: of this rank's gradient, and of what was lost of it."""

    layout: Layout
    own: Sequence[float]
    lost: Sequence[float]

    @classmethod
    def of(cls, layout: Layout, norms: Norms) -> Measured:
        """Read what an exchange has measured."""
        own, lost = (
            sums.view(layout.copies, -1).sum(0).tolist() if layout.copies > 1 else sums.tolist()
            for sums in (norms.own, norms.lost)
        )
        return cls(layout, own, lost)

    @property
    def usable(self) -> bool:
        """Whether all was finite; the step is no sample otherwise."""
        return all(map(math.isfinite, self.own)) and all(map(math.isfinite, self.lost))
