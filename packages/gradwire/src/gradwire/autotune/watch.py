"""The watch over step times after a decision, which requests a new one if they have changed."""

from __future__ import annotations

from math import inf

from gradwire.autotune.config import DEFAULT, AutoConfig
from gradwire.autotune.step_times import StepTime


class Watch:
    """The comparison of each window of steps with the first one after a decision, equal on all ranks.

    Attributes
    ----------
    patience
        The minimum number of steps between two decisions.
    since
        The step of the latest decision; 0 before the first.
    change
        The difference between the latest and the first window's step times, as a share of the shorter one.
    """

    def __init__(self, config: AutoConfig = DEFAULT) -> None:
        self._config, self.patience = config, config.patience_steps
        self.since, self.change = 0, 0.0
        self._reference: StepTime | None = None

    def decided(self, step: int) -> None:
        """Restart after a decision before ``step``; double the patience, or reset it after quiet steps."""
        if self.since:
            config = self._config
            quiet = step - self.since > self.patience + config.quiet_steps
            longer = min(2 * self.patience, config.most_patience_steps)
            self.patience = config.patience_steps if quiet else longer
        self.since, self._reference = step, None

    def forget(self) -> None:
        """Make the next window the reference, because the plan and its step times have changed."""
        self._reference = None

    def may_decide(self, step: int, part: float = 1.0) -> bool:
        """Return whether the share ``part`` of the patience has passed since the latest decision."""
        return step - self.since >= part * self.patience

    def changed(self, step: int, now: StepTime) -> bool:
        """Return whether the step time of the window that ended before ``step`` requires a new decision.

        Only the total step time is compared: if threads share cores, time shifts between computing and
        waiting.
        """
        if self._reference is None:
            self._reference = now
            return False
        shorter_s, longer_s = sorted((self._reference.step_s, now.step_s))
        self.change = longer_s / shorter_s - 1 if shorter_s else inf
        if not self.may_decide(step):
            return False
        return longer_s > (1 + self._config.changed_step_share) * shorter_s
