"""A queue of delayed frames to a host, and the report of a relay, without sockets or clocks."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass
from typing import NamedTuple

from gradwire.units import format_duration, format_size


class Frame(NamedTuple):
    """A frame and the time at which the frame is due; ``delay_s`` is None unless the delay is measured."""

    due: float
    data: bytes
    arrived: float = 0.0
    delay_s: float | None = None


class DelayLine:
    """A queue that delays frames, in order, and loses some, always the same frames for a ``seed``."""

    def __init__(self, delay_s: float, jitter_s: float, loss: float, seed: int) -> None:
        self._delay_s, self._jitter_s, self._loss = delay_s, jitter_s, loss
        self._random = random.Random(seed)
        self._last = 0.0
        self.frames: deque[Frame] = deque()
        self.lost = 0

    def put(self, data: bytes, now: float, stamp: float | None = None) -> None:
        """Add a frame that arrived at ``now``; ``stamp`` is the kernel's time of arrival, if measured."""
        if self._loss and self._random.random() < self._loss:
            self.lost += 1
            return
        delay_s = self._delay_s
        if self._jitter_s:
            delay_s += self._jitter_s * (2 * self._random.random() - 1)
        due = self._last = max(now + delay_s, self._last)
        self.frames.append(Frame(due, data) if stamp is None else Frame(due, data, stamp, due - now))


class Errors:
    """The distribution of the errors of measured delays, in whole microseconds."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, error_s: float) -> None:
        """Add the absolute value of an error."""
        self._counts[round(abs(error_s) * 1e6)] += 1

    def quantile_s(self, share: float) -> float | None:
        """Return the error in seconds that a ``share`` of errors doesn't exceed, or None without errors."""
        rank = share * self._counts.total()
        for error_us in sorted(self._counts):
            rank -= self._counts[error_us]
            if rank <= 0:
                return error_us / 1e6
        return None


@dataclass(frozen=True, slots=True)
class RelayReport:
    """The traffic of a relay in one run, its processor time, and the errors of its delays.

    Frames were ``lost`` on purpose, as ``overruns`` of the relay, or ``refused`` by a host's link.
    ``processor_s`` includes the kernel's work for the hosts that receive the frames.
    """

    frames: int
    nbytes: int
    lost: int
    overruns: int
    refused: int
    seconds: float
    processor_s: float
    error_median_s: float | None
    error_p99_s: float | None

    @property
    def processor_s_per_gb(self) -> float | None:
        """The processor time per 10^9 bytes, or None without traffic."""
        return self.processor_s / self.nbytes * 1e9 if self.nbytes else None

    def __str__(self) -> str:
        """Return the report in one line."""
        parts = [f"{format_size(self.nbytes)} in {self.frames} frames, {self.lost} lost on purpose"]
        if self.processor_s_per_gb is not None:
            parts.append(
                f"{self.processor_s_per_gb:.1f} s of processor time per GB "
                f"({100 * self.processor_s / self.seconds:.0f} % of a core)"
            )
        if self.error_median_s is not None and self.error_p99_s is not None:
            median, p99 = format_duration(self.error_median_s), format_duration(self.error_p99_s)
            parts.append(f"error of the delay {median} (median), {p99} (99 %)")
        return "; ".join(parts)
