"""Claims: measured or modelled figures, the rule that they must meet, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType

from gradwire.tables import Column, Table, figure
from gradwire.units import counted
from gradwire_lab.experiments.learning import LEAST_SEEDS, Trainings
from gradwire_lab.text_enum import TextEnum

NO_NUMBER = "in words"
SHARE, RATIO = "%", "x"
"""Two units: shares, from 0 to 1 and shown in percent, and ratios."""


class Basis(TextEnum):
    """The origin of a claim's figures."""

    MEASURED = "measured"
    MODELLED = "modelled"
    """The figure is from a model whose parameters do not come from the published figure."""
    CALIBRATED = "calibrated"
    """A parameter was set from the published figure, from its table, or after the figure was measured."""
    ARITHMETIC = "arithmetic"
    """The figure is computed from published numbers, or from bytes and a rate; no run can change it."""


class Verdict(TextEnum):
    """The judgement of a claim, in the order of reports, failures first."""

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
    """A range of allowed figures, which never contains None, NaN, or infinity."""

    least: float = -math.inf
    most: float = math.inf

    def holds(self, value: float | None) -> bool:
        """Return whether a figure is within the bound."""
        return value is not None and math.isfinite(value) and self.least <= value <= self.most

    def in_words(self, unit: str) -> str:
        """Return the bound as shown in tables: ``>= 3.20x``, ``0.9 to 1.1``."""
        if self.most == math.inf:
            return f">= {shown(self.least, unit)}"
        if self.least == -math.inf:
            return f"<= {shown(self.most, unit)}"
        least, most = shown(self.least, unit), shown(self.most, unit)
        return least if least == most else f"{least} to {most}"


def at_least(value: float) -> Bound:
    """Return the bound that requires a figure to be at least ``value``."""
    return Bound(least=value)


def at_most(value: float) -> Bound:
    """Return the bound of figures of at most ``value``."""
    return Bound(most=value)


def near(value: float, share: float) -> Bound:
    """Return the bound of figures that differ from ``value`` by at most this share of ``value``.

    Examples
    --------
    >>> near(2.0, 0.25)
    Bound(least=1.5, most=2.5)
    """
    around = abs(value) * share
    return Bound(value - around, value + around)


def within(ends: tuple[float, float], share: float) -> Bound:
    """Return the bound of a published range, widened at each end by this share of that end's value.

    Examples
    --------
    >>> within((2.0, 4.0), 0.25)
    Bound(least=1.5, most=5.0)
    """
    least, most = ends
    return Bound(least - abs(least) * share, most + abs(most) * share)


@dataclass(frozen=True)
class Published:
    """A paper's figure: its place in the paper, its value, and its erratum, if any.

    A share is from 0 to 1. Without a number in the paper, the value is None, and the rule expresses the plot
    or the words. The rule of a limit that the paper's figures meet (``is_limit``) has one side.
    """

    place: str
    value: float | tuple[float, float] | None = None
    erratum: str = ""
    is_limit: bool = False

    def in_words(self, unit: str) -> str:
        """Return the figure as shown in tables, a range as ``2.20x to 3.10x``."""
        if self.value is None:
            return NO_NUMBER
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        return " to ".join(shown(value, unit) for value in values)


@dataclass(frozen=True)
class Explanation:
    """The reason why a figure violates its rule, and a bound that the figure meets if the reason is true."""

    reason: str
    bound: Bound


@dataclass(frozen=True)
class Claim:
    """Named figures of a system, such as a model's (None: missing), and the rule that they must meet.

    ``of_each`` applies the rule to every figure instead of their mean. ``unit`` is ``SHARE``, ``RATIO``, or
    printed after a number. ``otherwise`` and ``better`` are bounds that figures may meet instead, with
    reasons. ``rests_on`` are the training runs behind times and ratios, or ``samples`` counts the
    measurements of the figure with the fewest. The reasons ``not_run``, ``declared`` (a failure declared
    before the run), and ``other_tool`` (rows of a different tool) override the figures.
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
        """The claim's text, followed by the claim's system."""
        return " ".join(filter(None, (self.text, self.system)))

    @property
    def mean(self) -> float | None:
        """The mean of the figures, or None if any figure is missing."""
        known = [each for each in self.figures.values() if each is not None]
        return fmean(known) if known and len(known) == len(self.figures) else None

    @property
    def is_met(self) -> bool:
        """Whether the figures meet the rule."""
        return self._keeps(self.wanted)

    @property
    def verdict(self) -> Verdict:
        """The judgement of the claim."""
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
        """The problems of the training runs behind the figures, except failures declared before the run."""
        return [each.problem for each in self.rests_on if each.problem and not each.expected_failure]

    @property
    def explained(self) -> str:
        """A sentence with the reason for a verdict that needs a reason, or nothing for other verdicts."""
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
        """The methods with too few training runs for a verdict, or nothing if all have enough runs."""
        short = [
            f"{each.name} has {'no whole training' if each.stage else counted(each.seeds, 'training')}"
            for each in self.rests_on
            if each.is_short
        ]
        if self.samples is not None and self.samples < LEAST_SEEDS:
            short.append(f"a figure was measured {counted(self.samples, 'time')}")
        return f"{'; '.join(short)}; a verdict needs {LEAST_SEEDS} of each, for an interval" if short else ""

    @property
    def _kept(self) -> Verdict | None:
        """The verdict from the bounds alone, whatever the number of training runs, or None if none is met."""
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
    """Return the figures of a claim that has a single figure."""
    return MappingProxyType({"": value})


def shown(value: float | None, unit: str) -> str:
    """Return a figure as shown in tables.

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


# An experiment's claims as a table: figures, rules, whether the rules are met, and reasons.


def claims_parts(judged: Sequence[Claim], names: Sequence[str] = ()) -> list[str | Table]:
    """Return the table of claims and a paragraph per explained claim, or nothing without claims."""
    if not judged:
        return []
    reasons = [claim.explained for claim in judged if claim.explained]
    return [claims_table(judged, names), "", *(part for each in reasons for part in (each, ""))]


def claims_table(judged: Sequence[Claim], names: Sequence[str] = ()) -> Table:
    """Return a table of claims with the named figures and their mean, or with the only figure."""
    columns = [Column.of_text("claim"), Column.of_text("on"), *map(Column, names)]
    columns += [Column("mean" if names else "found"), Column("wanted"), Column("met")]
    rows = []
    for claim in judged:
        named = [shown(claim.figures.get(name), claim.unit) for name in names]
        found, wanted = shown(claim.mean, claim.unit), claim.wanted.in_words(claim.unit)
        rows.append((claim.text, claim.system, *named, found, wanted, _met(claim)))
    return Table(columns, rows)


def _met(claim: Claim) -> str:
    if claim.verdict in (Verdict.DID_NOT_LEARN, Verdict.EXPLAINED, Verdict.EXCEEDED, Verdict.TOO_SHORT):
        return str(claim.verdict)
    return "yes" if claim.is_met else "no"
