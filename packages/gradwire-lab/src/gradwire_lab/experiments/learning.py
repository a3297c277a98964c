"""Goals of training runs, declared before them: figures of a run that misses its goal are invalid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gradwire.timing.interval import half_width

LEAST_SEEDS = 3
"""The minimum number of training runs of each method, because fewer runs give no useful interval."""
SHARE = 0.8
"""The share of the known accuracy gain over chance that an exact training run must reach."""
POINTS = 0.02
"""The largest allowed difference in accuracy from the exact method at equal steps: two points."""


@dataclass(frozen=True)
class Goal:
    """The accuracy that an exact training run must reach, declared before any training runs.

    It lies at ``share`` of the gain from guessing (``chance``) to a reference (``known``, from ``origin``).
    Other methods must end within ``points`` of the exact method.
    """

    chance: float
    known: float
    origin: str
    share: float = SHARE
    points: float = POINTS

    @property
    def least(self) -> float:
        """The smallest accuracy at which an exact training run has learned."""
        return self.chance + self.share * (self.known - self.chance)


GOALS = {
    "mnist": Goal(0.1, 0.985, "INCEPTIONN's accuracy of HDC, table I"),
    "digits": Goal(0.1, 0.989, "the nearest neighbour's accuracy on these images"),
    "cifar-10": Goal(0.1, 0.354, "the nearest neighbour's accuracy on pixels, L2 (Stanford's CS231n)"),
}


@dataclass(frozen=True)
class Trainings:
    """The training runs behind a claim: final accuracies of a method and of the exact method, by seed.

    ``expected_failure`` is the reason, declared before the run, why no learning is expected. ``stage``
    describes runs that ended before an accuracy was measured, such as "the first 24 of 320,000 steps".
    """

    name: str
    accuracies: Sequence[float]
    exact: Sequence[float]
    goal: Goal
    expected_failure: str = ""
    stage: str = ""

    @property
    def is_short(self) -> bool:
        """Whether there are too few training runs for an interval, or no training run ran to its end."""
        return bool(self.stage) or self.seeds < LEAST_SEEDS

    @property
    def seeds(self) -> int:
        """The smaller number of training runs: this method's, or the exact method's."""
        return min(len(self.accuracies), len(self.exact))

    @property
    def problem(self) -> str:
        """The reason why the training runs are invalid, or nothing if their models learned."""
        values = (*self.accuracies, *self.exact)
        if self.stage and not values:
            return ""
        if not self.accuracies or not self.exact or not all(map(math.isfinite, values)):
            return f"{self.name} has training runs without an accuracy"
        exact, own = fmean(self.exact), fmean(self.accuracies)
        if exact < self.goal.least:
            return (
                f"the exact training run of {self.name} ends at {_interval(self.exact)}, below "
                f"{self.goal.least:.3f}, {self.goal.share:.0%} of the gain from {self.goal.chance:.2f} "
                f"to {self.goal.known:.3f} ({self.goal.origin})"
            )
        if abs(own - exact) > self.goal.points:
            return (
                f"{self.name} ends at {_interval(self.accuracies)}, more than {100 * self.goal.points:g} "
                f"points from the exact method's {_interval(self.exact)}"
            )
        return ""

    def in_words(self) -> str:
        """Return the accuracies and intervals as text: ``INC+C 0.953 ± 0.004 (exact 0.961 ± 0.003)``."""
        if self.stage:
            return f"{self.name}, {self.stage}"
        return f"{self.name} {_interval(self.accuracies)} (exact {_interval(self.exact)})"


def exact_trainings(name: str, accuracies: Sequence[float], goal: Goal) -> Trainings:
    """Return the training runs of an exact method, which is the reference for other methods."""
    return Trainings(name, accuracies, accuracies, goal)


def loss_of(value: float | None) -> float:
    """Return a row's loss. Null, which represents a non-finite loss in a record, becomes infinity."""
    return value if value is not None and math.isfinite(value) else math.inf


def first_steps(name: str, of: int, losses: Sequence[float | None]) -> Trainings:
    """Return a training run stopped early, from the losses of its steps. A non-finite loss is a failure."""
    known = [loss_of(loss) for loss in losses]
    stage = f"the first {len(known)} of {of:,} steps, losses {known[0]:.2f} to {known[-1]:.2f}"
    goal = Goal(0.0, 1.0, "an accuracy that is not measured")
    if math.inf not in known:
        return Trainings(name, (), (), goal, stage=stage)
    return Trainings(f"{name} ({stage})", (), (), goal)


def _interval(accuracies: Sequence[float]) -> str:
    """Return a mean with half the width of its 95 % interval, as text."""
    if len(accuracies) < 2:
        return f"{fmean(accuracies):.3f} (one seed)" if accuracies else "-"
    return f"{fmean(accuracies):.3f} ± {half_width(accuracies):.3f}"
