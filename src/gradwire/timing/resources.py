"""What a replay shares out: lines that serve one frame after the other, and the cores of a machine."""

from __future__ import annotations

import heapq


class Port:
    """One direction of a line, or a core link: a token bucket that serves in the order of the asking.

    Parameters
    ----------
    nbytes_per_s
        The rate; ``math.inf`` for one that takes no time.
    burst_nbytes
        What passes at once after a pause.
    """

    __slots__ = ("_burst_s", "_free", "_s_per_nbyte", "busy_s")

    def __init__(self, nbytes_per_s: float, burst_nbytes: float = 0.0) -> None:
        self._s_per_nbyte = 1.0 / nbytes_per_s
        self._burst_s = burst_nbytes * self._s_per_nbyte
        self._free = -self._burst_s  # negative where a burst is left
        self.busy_s = 0.0

    def take(self, start_s: float, nbytes: float) -> tuple[float, float]:
        """Return when bytes that come from ``start_s`` on begin to pass, and when the last has passed."""
        lasts = nbytes * self._s_per_nbyte
        begin = max(start_s, self._free)
        self._free = max(self._free, start_s - self._burst_s) + lasts
        self.busy_s += lasts
        return begin, max(begin, self._free)


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
