"""Claims: figures that a run has measured or modelled, what is wanted of them, and the verdict.

A claim has a stated rule, a ``Bound``, and its verdict follows from that alone: altered figures change it. A
claim about a published figure names it as ``Published``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from types import MappingProxyType

from gradwire.experiments.learning import LEAST_SEEDS, Trainings
from gradwire.tables import figure
from gradwire.units import counted

NO_NUMBER = "in words"
"""In the place of a published figure without one."""
SHARE, RATIO = "%", "x"
"""Units of shares, which are from 0 to 1 and shown in percent, and of ratios."""


class Basis(StrEnum):
    """Where a claim's figures come from."""

    MEASURED = "measured"
    MODELLED = "modelled"
    """A model's figures, whose parameters come from elsewhere."""
    CALIBRATED = "calibrated"
    """A parameter was set from the published figure, from its table, or after a look at the measured one."""
    ARITHMETIC = "arithmetic"
    """Published numbers recombined, or bytes over a rate that was set: no run can change them."""


class Verdict(StrEnum):
    """The judgement of a claim, in the order of reports: failures come first."""

    DID_NOT_LEARN = "did not learn"
    NOT_REPRODUCED = "not reproduced"
    DECLARED = "failed as declared"
    EXPLAINED = "explained"
    TOO_SHORT = "too short"
    EXCEEDED = "exceeded"
    REPRODUCED = "reproduced"
    MODELLED = "modelled"
    CALIBRATED = "calibrated"
    ARITHMETIC = "arithmetic"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Bound:
    """A range that figures must lie in: at least ``least`` and at most ``most``.

    No figure, NaN, and infinity never do.
    """

    least: float = -math.inf
    most: float = math.inf

    def holds(self, value: float | None) -> bool:
        """Return whether a figure keeps it."""
        return value is not None and math.isfinite(value) and self.least <= value <= self.most

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


def within(ends: tuple[float, float], share: float) -> Bound:
    """Return the bound of a figure in a published range, which it may leave by a share of its ends.

    Examples
    --------
    >>> within((2.0, 4.0), 0.25)
    Bound(least=1.5, most=5.0)
    """
    least, most = ends
    return Bound(least - abs(least) * share, most + abs(most) * share)


@dataclass(frozen=True)
class Published:
    """A figure of a paper: where it stands, its value (shares from 0 to 1), and what is wrong with it.

    The value is None where the paper has a plot or words, but no number; the rule then says what they mean.
    A value that ``is_limit`` is one that the paper's own figures keep to, such as "at most 2 %": a rule with
    one side judges it. All other values have rules with two sides.
    """

    place: str
    value: float | tuple[float, float] | None = None
    erratum: str = ""
    is_limit: bool = False

    def in_words(self, unit: str) -> str:
        """Return the figure as tables have it, a range as ``2.20x to 3.10x``."""
        if self.value is None:
            return NO_NUMBER
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        return " to ".join(shown(value, unit) for value in values)


@dataclass(frozen=True)
class Explanation:
    """Why a figure isn't within its rule here, and the bound that it keeps if that is the reason."""

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
    better
        The figures that are better than published, and why they are here.
    basis
        Where the figures come from.
    rests_on
        The trainings that times, ratios, and speed-ups come from.
    samples
        How often the rarest figure was measured, where no training says it; None where no scatter counts.
    not_run
        Why there are no figures, if the claim wasn't tried.
    declared
        Why figures of a training that failed as declared before the run count for nothing.
    other_tool
        What the rows name in the place of the tool that the claim is about; nothing if they name that one.
    """

    text: str
    figures: Mapping[str, float | None]
    wanted: Bound
    system: str = ""
    of_each: bool = False
    unit: str = SHARE
    published: Published | None = None
    otherwise: Explanation | None = None
    better: Explanation | None = None
    basis: Basis = Basis.MEASURED
    rests_on: Sequence[Trainings] = ()
    samples: int | None = None
    not_run: str = ""
    declared: str = ""
    other_tool: str = ""

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
        if self.not_run:
            return Verdict.NOT_RUN
        if self.not_learned:
            return Verdict.DID_NOT_LEARN
        if self.declared:
            return Verdict.DECLARED
        if self.other_tool:
            return Verdict.NOT_REPRODUCED
        verdict = self._kept
        is_short = verdict is not None and bool(self._few)
        return Verdict.TOO_SHORT if is_short else verdict or Verdict.NOT_REPRODUCED

    @property
    def not_learned(self) -> Sequence[str]:
        """Why trainings that the figures rest on don't count, where no failure of theirs was declared."""
        return [each.problem for each in self.rests_on if each.problem and not each.expected_failure]

    @property
    def explained(self) -> str:
        """The reason for a verdict that needs one, as a sentence; nothing for the others."""
        verdict = self.verdict
        reasons = {
            Verdict.DID_NOT_LEARN: "; ".join(self.not_learned),
            Verdict.EXCEEDED: "" if self.better is None else f"because {self.better.reason}",
            Verdict.EXPLAINED: "" if self.otherwise is None else f"because {self.otherwise.reason}",
            Verdict.TOO_SHORT: f"because {self._few}",
            Verdict.NOT_REPRODUCED: f"because {self.other_tool}" if self.other_tool else "",
            Verdict.DECLARED: self.declared,
            Verdict.NOT_RUN: self.not_run,
        }
        return f"{self.title}: {verdict}, {reasons[verdict]}" if reasons.get(verdict) else ""

    @property
    def _few(self) -> str:
        """Which methods have too few trainings for a verdict, and how many it takes; nothing if none has."""
        short = [
            f"{each.name} has {'no whole training' if each.stage else counted(each.seeds, 'training')}"
            for each in self.rests_on
            if each.is_short
        ]
        if self.samples is not None and self.samples < LEAST_SEEDS:
            short.append(f"a figure was measured {counted(self.samples, 'time')}")
        return f"{'; '.join(short)}; a verdict takes {LEAST_SEEDS} of each, for an interval" if short else ""

    @property
    def _kept(self) -> Verdict | None:
        """The verdict by the rule that the figures keep, however few trainings there are; None for none."""
        if self.is_met:
            return Verdict.REPRODUCED if self.basis is Basis.MEASURED else Verdict(self.basis.value)
        for other, verdict in ((self.better, Verdict.EXCEEDED), (self.otherwise, Verdict.EXPLAINED)):
            if other is not None and self._keeps(other.bound):
                return verdict
        return None

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
