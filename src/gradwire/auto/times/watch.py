"""Watch whether steps still take what they took after the last decision."""

from __future__ import annotations

from gradwire.auto.times.step_times import StepTime

CHANGED = 0.25
"""Steps that take longer or shorter by this share of the shorter one are worth another look."""
PATIENCE = 60
"""The fewest steps between two decisions; it doubles with each, so that plans do not go back and forth."""
MOST_PATIENCE = 960
QUIET = 500
"""After so many steps more without a reason, patience is what it was at first."""


class Watch:
    """Compares windows of steps with the first one after a decision; the same on all ranks, with equal times.

    Attributes
    ----------
    patience
        The fewest steps from one decision to the next.
    since
        The step of the latest decision, 0 before there is one.
    """

    def __init__(self) -> None:
        self.patience = PATIENCE
        self.since = 0
        self._reference: StepTime | None = None

    def decided(self, step: int) -> None:
        """Begin anew after a decision before ``step``; the next one has to wait longer."""
        if self.since:
            quiet = step - self.since > self.patience + QUIET
            self.patience = PATIENCE if quiet else min(2 * self.patience, MOST_PATIENCE)
        self.since, self._reference = step, None

    def forget(self) -> None:
        """Compare with the next window from now on: the plan has changed, and with it what steps take."""
        self._reference = None

    def may_decide(self, step: int, part: float = 1.0) -> bool:
        """Return whether this part of the patience has passed since the latest decision."""
        return step - self.since >= part * self.patience

    def changed(self, step: int, now: StepTime) -> bool:
        """Return whether the window that ended before ``step`` asks for another decision.

        Steps that take as long don't, although they may wait less and compute longer: threads that share
        cores shift the one to the other.
        """
        if self._reference is None:
            self._reference = now
            return False
        if not self.may_decide(step):
            return False
        shorter_s, longer_s = sorted((self._reference.step_s, now.step_s))
        return longer_s > (1 + CHANGED) * shorter_s
