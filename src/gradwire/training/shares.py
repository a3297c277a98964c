"""The share of a gradient's norm that encoding lost: whose it is, and in which steps it is measured."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gradwire.exchange import Norms

_FIRST, _EVERY = 2, 64
_ROUNDING = 0.25
"""Up to this part of what was encoded may vanish in rounding."""


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


def is_rounding(encoded: float, decoded: float, lost: float) -> bool:
    """Tell whether what was lost is rounding, which averages out over steps, from sums of squares.

    Rounding is nearly orthogonal to what is rounded, and smaller. Where most values become 0 what is lost is
    the values themselves: ``<lost, encoded> / <encoded, encoded>``, by the law of cosines, is near 1 then.
    And where more is lost than there was, noise has taken the place of the gradient.
    """
    vanished = (encoded + lost - decoded) / 2
    return lost <= encoded and vanished <= _ROUNDING * encoded


@dataclass(frozen=True, slots=True)
class Measured:
    """Sums of squares, by parameter, of one exchange.

    Of this rank's gradient, of what was lost of it, and of what was encoded and decoded.
    """

    layout: Layout
    own: Sequence[float]
    lost: Sequence[float]
    encoded: Sequence[float] = ()
    decoded: Sequence[float] = ()

    @classmethod
    def of(cls, layout: Layout, norms: Norms) -> Measured:
        """Read what an exchange has measured."""
        own, lost, encoded, decoded = (
            sums.view(layout.copies, -1).sum(0).tolist() if layout.copies > 1 else sums.tolist()
            for sums in (norms.own, norms.lost, norms.encoded, norms.decoded)
        )
        return cls(layout, own, lost, encoded, decoded)

    @property
    def usable(self) -> bool:
        """Whether all was finite; the step is no sample otherwise."""
        return all(map(math.isfinite, self.own)) and all(map(math.isfinite, self.lost))

    def shares(self) -> Iterator[tuple[str, Hashable, float | None, bool]]:
        """Yield every parameter's name, its group, the share it lost and whether that is mere rounding."""
        sums = zip(self.own, self.lost, self.encoded, self.decoded, strict=True)
        for name, group, (own, lost, encoded, decoded) in zip(
            self.layout.names, self.layout.groups, sums, strict=True
        ):
            yield name, group, share_of(own, lost), is_rounding(encoded, decoded, lost)
