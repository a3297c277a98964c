"""Goals of trainings: no time, ratio, or speed-up counts of a training that didn't learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from types import MappingProxyType

LEAST_SEEDS = 3
"""Trainings of each method: fewer have no interval worth the name."""
SHARE = 0.8
"""The part of its known gain over chance that an exact training must reach."""
POINTS = 0.02
"""Accuracy by which another method may differ from the exact one at equal steps: two points."""
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Student's t for a 95 % interval, by degrees of freedom from 1 up; 2.26 is used beyond the last."""


@dataclass(frozen=True)
class Goal:
    """The accuracy that an exact training must reach, named before any training runs.

    ``chance`` is the accuracy of guessing, and ``known`` that of this model on these images, as ``origin``
    says. ``share`` is the part of the gain over chance that must be reached, and ``points`` the accuracy by
    which another method may differ from the exact one.
    """

    chance: float
    known: float
    origin: str
    share: float = SHARE
    points: float = POINTS

    @property
    def least(self) -> float:
        """The smallest accuracy of an exact training that counts."""
        return self.chance + self.share * (self.known - self.chance)


GOALS = MappingProxyType(
    {
        "mnist": Goal(0.1, 0.985, "INCEPTIONN's accuracy of HDC, table I"),
        "digits": Goal(0.1, 0.989, "the nearest neighbour's accuracy on these images"),
        "cifar-10": Goal(0.1, 0.354, "the nearest neighbour's accuracy on pixels, L2 (Stanford's CS231n)"),
    }
)
"""The goal of a training by its images."""


@dataclass(frozen=True)
class Trainings:
    """The trainings that a claim rests on: one method's final accuracies, and the exact method's.

    They are those at equal steps, one for each seed; an exact method has itself as ``exact``.
    ``expected_failure`` is why a method isn't expected to learn, if that was declared before the run.
    ``stage`` is how far trainings went that were stopped before they could have an accuracy, such as "the
    first 24 of 320,000 steps": what rests on them is too short for a verdict.
    """

    name: str
    accuracies: Sequence[float]
    exact: Sequence[float]
    goal: Goal
    expected_failure: str = ""
    stage: str = ""

    @property
    def is_short(self) -> bool:
        """Whether there are fewer trainings than an interval takes, or none was run to its end."""
        return bool(self.stage) or self.seeds < LEAST_SEEDS

    @property
    def seeds(self) -> int:
        """The trainings of this method, or of the exact one, if these are fewer."""
        return min(len(self.accuracies), len(self.exact))

    @property
    def problem(self) -> str:
        """Why these trainings don't count; nothing if they learned."""
        values = (*self.accuracies, *self.exact)
        if self.stage and not values:
            return ""
        if not self.accuracies or not self.exact or not all(map(math.isfinite, values)):
            return f"{self.name} has trainings without an accuracy"
        exact, own = fmean(self.exact), fmean(self.accuracies)
        if exact < self.goal.least:
            return (
                f"the exact training of {self.name} ends at {_interval(self.exact)}, below "
                f"{self.goal.least:.3f}, {self.goal.share:.0%} of the gain from {self.goal.chance:.2f} "
                f"to {self.goal.known:.3f} ({self.goal.origin})"
            )
        if abs(own - exact) > self.goal.points:
            return (
                f"{self.name} ends at {_interval(self.accuracies)}, more than {100 * self.goal.points:g} "
                f"points from {_interval(self.exact)} without it"
            )
        return ""

    def in_words(self) -> str:
        """Return both accuracies with their intervals: ``INC+C 0.953 ± 0.004 (exact 0.961 ± 0.003)``."""
        if self.stage:
            return f"{self.name}, {self.stage}"
        return f"{self.name} {_interval(self.accuracies)} (exact {_interval(self.exact)})"


def exact_trainings(name: str, accuracies: Sequence[float], goal: Goal) -> Trainings:
    """Return the trainings of an exact method, which others are compared with."""
    return Trainings(name, accuracies, accuracies, goal)


def loss_of(value: float | None) -> float:
    """Return a loss of a row: one that isn't finite, which is null in a record, is infinite."""
    return value if value is not None and math.isfinite(value) else math.inf


def first_steps(name: str, of: int, losses: Sequence[float | None]) -> Trainings:
    """Return a training that was stopped early, by the losses of its steps; one that isn't finite failed."""
    known = [loss_of(loss) for loss in losses]
    stage = f"the first {len(known)} of {of:,} steps, losses {known[0]:.2f} to {known[-1]:.2f}"
    goal = Goal(0.0, 1.0, "an accuracy that is not measured")
    if math.inf not in known:
        return Trainings(name, (), (), goal, stage=stage)
    return Trainings(f"{name} ({stage})", (), (), goal)


def half_width(values: Sequence[float]) -> float:
    """Return half of the 95 % interval of a mean; infinite for less than two values.

    Examples
    --------
    >>> round(half_width([1.0, 2.0, 3.0]), 3)
    2.483
    """
    if len(values) < 2:
        return math.inf
    return float(T_95[min(len(values) - 2, len(T_95) - 1)] * stdev(values) / len(values) ** 0.5)


def _interval(accuracies: Sequence[float]) -> str:
    """Return a mean with half of its 95 % interval."""
    if len(accuracies) < 2:
        return f"{fmean(accuracies):.3f} (one seed)" if accuracies else "-"
    return f"{fmean(accuracies):.3f} ± {half_width(accuracies):.3f}"
