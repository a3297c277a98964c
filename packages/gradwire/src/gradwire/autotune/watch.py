"""The watch over step times after a decision, which asks for another one once they have changed."""

from __future__ import annotations

from math import inf

from gradwire.autotune.config import DEFAULT, AutoConfig
from gradwire.autotune.step_times import StepTime


class Watch:
    """Compares windows of steps with the first one after a decision; the same on all ranks, with equal times.

    Attributes
    ----------
    patience
        The fewest steps from one decision to the next.
    since
        The step of the latest decision, 0 before there is one.
    change
        The difference of the latest window and the first one, as a share of the shorter step.
    """

    def __init__(self, config: AutoConfig = DEFAULT) -> None:
        self._config, self.patience = config, config.patience_steps
        self.since, self.change = 0, 0.0
        self._reference: StepTime | None = None

    def decided(self, step: int) -> None:
        """Begin anew after a decision before ``step``; the next one has to wait longer."""
        if self.since:
            config = self._config
            quiet = step - self.since > self.patience + config.quiet_steps
            longer = min(2 * self.patience, config.most_patience_steps)
            self.patience = config.patience_steps if quiet else longer
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
        shorter_s, longer_s = sorted((self._reference.step_s, now.step_s))
        self.change = longer_s / shorter_s - 1 if shorter_s else inf
        if not self.may_decide(step):
            return False
        return longer_s > (1 + self._config.changed_step_share) * shorter_s
