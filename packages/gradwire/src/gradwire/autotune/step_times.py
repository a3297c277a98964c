"""Step times, measured on the training thread."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter

from gradwire.autotune.settings import DEFAULT, AutoConfig
from gradwire.timing.calibrate import disagreement


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: computation, the backward pass in it, and exposed waiting for averages."""

    compute_s: float
    backward_s: float
    exposed_s: float

    @property
    def step_s(self) -> float:
        """Seconds of the whole step."""
        return self.compute_s + self.exposed_s


class StepTimes:
    """The times of the latest steps. Each step begins when the previous one ends."""

    def __init__(self, clock: Callable[[], float] = perf_counter, config: AutoConfig = DEFAULT) -> None:
        self._clock = clock
        self._latest = deque[StepTime](maxlen=config.window_steps)
        self._buckets: list[tuple[float, int]] = []
        self._ended: float | None = None
        self._uncounted = 0

    def __len__(self) -> int:
        return len(self._latest)

    def handed_over(self, count: int) -> None:
        """Record the time at which backward has filled a bucket of ``count`` floats."""
        self._buckets.append((self._clock(), count))

    def end(self, wait_s: float | None = None) -> None:
        """Record the end of a step. The first step is not timed, because its beginning is unknown.

        ``wait_s`` is its total time of waiting for averages; by default, the time after its last bucket.
        """
        now, began = self._clock(), self._ended
        self._ended = now
        buckets, self._buckets = self._buckets, []
        if began is None:
            return
        if wait_s is not None:
            self._add(StepTime(max(now - began - wait_s, 0.0), 0.0, wait_s))
        elif buckets:
            (first, count), (last, _) = buckets[0], buckets[-1]
            total = sum(each for _, each in buckets)
            # The first bucket's backward time is unknown: assume times in proportion to bucket sizes.
            backward_s = (last - first) * total / (total - count) if total > count else 0.0
            self._add(StepTime(last - began, min(backward_s, last - began), now - last))

    def forget(self, uncounted: int = 1) -> None:
        """Discard all times, and don't time the next ``uncounted`` steps. The first has no beginning."""
        self._latest.clear()
        self._ended, self._uncounted = None, uncounted - 1

    def _add(self, step: StepTime) -> None:
        if self._uncounted == 0:
            self._latest.append(step)
        self._uncounted = max(self._uncounted - 1, 0)

    def leave_out(self, seconds: float) -> None:
        """Subtract ``seconds`` from the current step, because training was paused for them."""
        self._ended = None if self._ended is None else self._ended + seconds

    @property
    def median(self) -> StepTime:
        """The medians of the latest steps. There must be at least one."""
        rows = [(each.compute_s, each.backward_s, each.exposed_s) for each in self._latest]
        return StepTime(*map(statistics.median, zip(*rows, strict=True)))

    @property
    def disagreement(self) -> float:
        """The relative scatter of the latest step times (``timing.calibrate.disagreement``)."""
        return disagreement([each.step_s for each in self._latest])


def slowest(rows: Sequence[Sequence[float]]) -> StepTime:
    """Return the longest computation and backward times of all ranks, and their shortest waiting time.

    The other ranks wait for the rank that computes longest, so that rank has the shortest waiting time.
    """
    compute_s = max(row[0] for row in rows)
    backward_s = max(row[1] for row in rows)
    return StepTime(compute_s, min(backward_s, compute_s), min(row[2] for row in rows))


# Whether step times have changed since a decision, so that a new one is due.


class Watch:
    """The comparison of each window of steps with the first window after a decision, equal on all ranks.

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
        """Start a new comparison after the decision before ``step``, and update the patience.

        The patience doubles, or is reset if the steps since the previous decision were quiet.
        """
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
