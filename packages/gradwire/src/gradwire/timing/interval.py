"""Confidence intervals of repeated measurements, and ratios of two methods' times with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Student's t for a 95 % interval, for 1 and more degrees of freedom; 2.26 beyond the last entry."""


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the mean's 95 % confidence interval, or infinity for fewer than two values.

    Examples
    --------
    >>> round(half_width([1.0, 2.0, 3.0]), 3)
    2.483
    """
    if len(values) < 2:
        return math.inf
    return float(T_95[min(len(values) - 2, len(T_95) - 1)] * stdev(values) / len(values) ** 0.5)


@dataclass(frozen=True)
class Ratio:
    """The ratio of two methods' times: the geometric mean over repeats, and its 95 % interval."""

    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, numbers: Iterable[float]) -> Self:
        """Return the ratio from the ratios of one or more repeats, all above 0.

        The interval of a single repeat is from 0 to infinity.
        """
        logs = [math.log(each) for each in numbers]
        mean, around = fmean(logs), half_width(logs)
        powers = mean, mean - around, mean + around
        return cls(*(math.exp(power) if power < 700 else math.inf for power in powers))

    @property
    def is_tie(self) -> bool:
        """Whether the interval includes 1."""
        return self.least <= 1 <= self.most

    def in_words(self) -> str:
        """Return the ratio and its interval as text, marked if the ratio is a tie, or below 1.

        Examples
        --------
        >>> Ratio(1.25, 1.1, 1.42).in_words(), Ratio(1.02, 0.93, 1.11).in_words()
        ('1.25x (1.10 to 1.42)', 'tie: 1.02x (0.93 to 1.11)')
        """
        tie = "tie: " if self.is_tie else "slower: " if self.mean < 1 else ""
        return f"{tie}{self.mean:.2f}x ({self.least:.2f} to {self.most:.2f})"
