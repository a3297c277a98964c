"""Claims: figures that a run has measured or modelled, what is wanted of them, and the verdict.

A claim has a stated rule, a ``Bound``, and its verdict follows from that alone: altered figures change it. A
claim about a published figure names it as ``Published``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from types import MappingProxyType

from gradwire.tables import figure

NO_NUMBER = "in words"
"""In the place of a published figure without one."""
SHARE, RATIO = "%", "x"
"""Units of shares, which are from 0 to 1 and shown in percent, and of ratios."""


class Verdict(StrEnum):
    """What a claim comes to."""

    REPRODUCED = "reproduced"
    EXPLAINED = "explained"
    MODELLED = "modelled"
    NOT_REPRODUCED = "not reproduced"


@dataclass(frozen=True)
class Bound:
    """What figures must be: at least ``least`` and at most ``most``. No figure and NaN are never that."""

    least: float = -math.inf
    most: float = math.inf

    def holds(self, value: float | None) -> bool:
        """Return whether a figure keeps it."""
        return value is not None and self.least <= value <= self.most

    def in_words(self, unit: str) -> str:
        """Return it as it stands in tables: ``>= 3.20x``, ``0.9 to 1.1``."""
        if self.most == math.inf:
            return f">= {shown(self.least, unit)}"
        if self.least == -math.inf:
            return f"<= {shown(self.most, unit)}"
        least, most = shown(self.least, unit), shown(self.most, unit)
        return least if least == most else f"{least} to {most}"


def at_least(value: float) -> Bound:
    """Return a lower bound."""
    return Bound(least=value)


def at_most(value: float) -> Bound:
    """Return an upper bound."""
    return Bound(most=value)


def near(value: float, share: float) -> Bound:
    """Return the bound of a figure that differs from ``value`` by a share of it at most.

    Examples
    --------
    >>> near(2.0, 0.25)
    Bound(least=1.5, most=2.5)
    """
    around = abs(value) * share
    return Bound(value - around, value + around)


@dataclass(frozen=True)
class Published:
    """A figure of a paper: where it stands, its value (shares from 0 to 1), and what is wrong with it.

    The value is None where the paper has a plot or words, but no number; the rule then says what they mean.
    """

    place: str
    value: float | tuple[float, float] | None = None
    erratum: str = ""

    def in_words(self, unit: str) -> str:
        """Return the figure as tables have it, a range as ``2.20x to 3.10x``."""
        if self.value is None:
            return NO_NUMBER
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        return " to ".join(shown(value, unit) for value in values)


@dataclass(frozen=True)
class Explanation:
    """Why a published figure isn't met here, and the bound that the figure keeps if that is the reason."""

    reason: str
    bound: Bound


@dataclass(frozen=True)
class Claim:
    """Figures by name, such as a model's, and what is wanted of them.

    Attributes
    ----------
    text, system
        What is claimed, and where.
    figures
        By name; None where there is none, as for a policy that doesn't reach an error.
    wanted
        The rule.
    of_each
        Whether every figure must keep it, instead of their mean.
    unit
        ``SHARE``, ``RATIO``, or what stands behind a number.
    published
        The figure of a paper that this is the counterpart of.
    otherwise
        What holds instead if the rule isn't kept, and why.
    is_modelled
        Whether figures come from a model instead of a measurement.
    """

    text: str
    figures: Mapping[str, float | None]
    wanted: Bound
    system: str = ""
    of_each: bool = False
    unit: str = SHARE
    published: Published | None = None
    otherwise: Explanation | None = None
    is_modelled: bool = False

    @property
    def title(self) -> str:
        """What is claimed, and where."""
        return " ".join(filter(None, (self.text, self.system)))

    @property
    def mean(self) -> float | None:
        """The mean of the figures; None where one of them is missing."""
        known = [each for each in self.figures.values() if each is not None]
        return fmean(known) if known and len(known) == len(self.figures) else None

    @property
    def is_met(self) -> bool:
        """Whether the rule is kept."""
        return self._keeps(self.wanted)

    @property
    def verdict(self) -> Verdict:
        """What the figures say of the claim."""
        if self.is_met:
            return Verdict.MODELLED if self.is_modelled else Verdict.REPRODUCED
        if self.otherwise is not None and self._keeps(self.otherwise.bound):
            return Verdict.EXPLAINED
        return Verdict.NOT_REPRODUCED

    @property
    def explained(self) -> str:
        """Why the rule isn't kept; nothing where it is, or where the figures don't follow from the reason."""
        if self.otherwise is None or self.verdict is not Verdict.EXPLAINED:
            return ""
        return f"{self.title}: explained, because {self.otherwise.reason}"

    def _keeps(self, bound: Bound) -> bool:
        judged = [*self.figures.values()] if self.of_each else [self.mean]
        return bool(judged) and all(map(bound.holds, judged))


def only(value: float | None) -> Mapping[str, float | None]:
    """Return the figures of a claim that has one."""
    return MappingProxyType({"": value})


def shown(value: float | None, unit: str) -> str:
    """Return a figure as tables have it.

    Examples
    --------
    >>> shown(0.123, SHARE), shown(2.5, RATIO), shown(53, "MB"), shown(None, RATIO)
    ('12.3%', '2.50x', '53 MB', '-')
    """
    if value is None:
        return "-"
    if unit == SHARE:
        return f"{100 * value:.1f}%"
    if unit == RATIO:
        return f"{value:.2f}x"
    sign = "-" if value < 0 else ""
    text = f"{sign}{figure(abs(value))}" if abs(value) >= 0.001 or value == 0 else f"{value:.1e}"
    return f"{text} {unit}".rstrip()
