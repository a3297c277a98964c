"""The times of steps, by the clock of the thread that trains."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from gradwire.autotune.config import DEFAULT, AutoConfig
from gradwire.timing.calibrate import disagreement


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: computing, its backward pass, and waiting for averages that nothing hides."""

    compute_s: float
    backward_s: float
    exposed_s: float

    @property
    def step_s(self) -> float:
        """Seconds of the whole step."""
        return self.compute_s + self.exposed_s


class StepTimes:
    """The times of the latest steps. A step begins when the one before has ended."""

    def __init__(self, clock: Callable[[], float] = perf_counter, config: AutoConfig = DEFAULT) -> None:
        self._clock = clock
        self._latest = deque[StepTime](maxlen=config.window_steps)
        self._buckets: list[tuple[float, int]] = []
        self._ended: float | None = None
        self._uncounted = 0

    def __len__(self) -> int:
        return len(self._latest)

    def handed_over(self, count: int) -> None:
        """Note that backward has a bucket of ``count`` floats ready."""
        self._buckets.append((self._clock(), count))

    def end(self, wait_s: float | None = None) -> None:
        """Note that a step is over. The first one, whose beginning is unknown, does not count.

        ``wait_s`` is what it has waited for averages, in several places; by default it waits for them after
        its last bucket.
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
            # Backward takes time in proportion to gradients' sizes, those of the first bucket included.
            backward_s = (last - first) * total / (total - count) if total > count else 0.0
            self._add(StepTime(last - began, min(backward_s, last - began), now - last))

    def forget(self, uncounted: int = 1) -> None:
        """Begin anew, and do not count the next ``uncounted`` steps, the first of which has no beginning."""
        self._latest.clear()
        self._ended, self._uncounted = None, uncounted - 1

    def _add(self, step: StepTime) -> None:
        if self._uncounted == 0:
            self._latest.append(step)
        self._uncounted = max(self._uncounted - 1, 0)

    def leave_out(self, seconds: float) -> None:
        """Let the step under way be shorter by this: training did nothing of its own in it."""
        self._ended = None if self._ended is None else self._ended + seconds

    @property
    def median(self) -> StepTime:
        """The medians of the latest steps, of which there is one at least."""
        rows = [(each.compute_s, each.backward_s, each.exposed_s) for each in self._latest]
        return StepTime(*map(statistics.median, zip(*rows, strict=True)))

    @property
    def disagreement(self) -> float:
        """The distance of the latest steps' quartiles from their middle, as a share of it."""
        return disagreement([each.step_s for each in self._latest])


def slowest(rows: Sequence[Sequence[float]]) -> StepTime:
    """Return the times of the rank that computes longest, for which the others wait, and the least wait."""
    compute_s = max(row[0] for row in rows)
    backward_s = max(row[1] for row in rows)
    return StepTime(compute_s, min(backward_s, compute_s), min(row[2] for row in rows))
