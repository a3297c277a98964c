"""The cores of one machine, which the ranks on it share."""

from __future__ import annotations

import heapq


class Cores:
    """The cores of one machine: whoever asks first is served first."""

    __slots__ = ("_free",)

    def __init__(self, count: int) -> None:
        self._free = [0.0] * count

    def take(self, now_s: float, lasts_s: float) -> float:
        """Return when work that takes ``lasts_s`` seconds of one core is done."""
        if lasts_s <= 0:
            return now_s
        done = max(now_s, self._free[0]) + lasts_s
        heapq.heapreplace(self._free, done)
        return done
