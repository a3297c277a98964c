"""Compute when a step's exchanges end, given that they begin during its backward pass.

With one lane, buckets are exchanged one after the other. With K lanes, bucket i uses lane i modulo K, and up
to K buckets are exchanged at the same time. Concurrent exchanges share links and cores, so an exchange takes
longer if more exchanges run. The time of n concurrent exchanges is taken from a replay of n equal buckets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

Durations = Callable[[int], float]
"""The seconds of a bucket's exchange, by the number of concurrent exchanges."""
_DONE = 1e-9
"""If at most this share of an exchange remains, the exchange is done: the rest is a rounding error."""


def numbers_at_once(lanes: int) -> tuple[int, ...]:
    """Return the numbers of concurrent exchanges to replay: powers of two, and ``lanes``.

    Examples
    --------
    >>> numbers_at_once(1), numbers_at_once(5), numbers_at_once(8)
    ((1,), (1, 2, 4, 5), (1, 2, 4, 8))
    """
    powers = (1 << power for power in range(lanes.bit_length()))
    return (*(each for each in powers if each < lanes), lanes)


def end_in_turn_s(ready_s: Iterable[float], exchange_s: Iterable[float]) -> float:
    """Return the end of exchanges that run one after the other, none of them before its bucket is ready."""
    end_s = 0.0
    for ready, takes in zip(ready_s, exchange_s, strict=True):
        end_s = max(end_s, ready) + takes
    return end_s


def end_in_lanes_s(ready_s: Sequence[float], exchange_s: Sequence[Durations], lanes: int) -> float:
    """Return the end of exchanges in lanes, each as soon as its bucket is ready and its lane is idle."""
    now, following = 0.0, list(range(min(lanes, len(ready_s))))
    running: dict[int, float] = {}  # each lane's bucket, and the share of its exchange that is left
    while running or any(each < len(ready_s) for each in following):
        for lane, bucket in enumerate(following):
            is_idle = lane not in {each % lanes for each in running}
            if is_idle and bucket < len(ready_s) and ready_s[bucket] <= now:
                running[bucket] = 1.0
                following[lane] += lanes
        busy = {each % lanes for each in running}
        coming = [
            ready_s[each] for lane, each in enumerate(following) if lane not in busy and each < len(ready_s)
        ]
        until_s = min(coming, default=float("inf"))
        takes_s = {each: exchange_s[each](len(running)) for each in running}
        ends_s = min((now + left * takes_s[each] for each, left in running.items()), default=until_s)
        passes_s, now = max(0.0, min(until_s, ends_s) - now), min(until_s, ends_s)
        for each, left in [*running.items()]:
            running[each] = left - passes_s / takes_s[each] if takes_s[each] else 0.0
            if running[each] <= _DONE:
                del running[each]
    return now


@dataclass(frozen=True)
class StepExchanges:
    """A step's exchanges in lanes, of buckets with ``counts`` floats.

    ``seconds(count, number)``, the time of ``number`` concurrent exchanges of ``count`` floats, is called for
    ``numbers_at_once`` and interpolated for other numbers.
    """

    counts: Sequence[int]
    lanes: int
    seconds: Callable[[int, int], float]

    def end_s(self, ready_s: Sequence[float]) -> float:
        """Return the end of the last exchange. All times are measured from the start of backward."""
        duration_s = lru_cache(None)(self._duration_s)
        return end_in_lanes_s(ready_s, [partial(duration_s, count) for count in self.counts], self.lanes)

    def least_end_s(self, ready_s: Sequence[float]) -> float:
        """Return a lower bound for ``end_s``, without a simulation of the lanes."""
        last_s = max(
            ready + self.seconds(count, 1) for ready, count in zip(ready_s, self.counts, strict=True)
        )
        together_s = sum(self.seconds(count, self.lanes) for count in self.counts) / self.lanes
        return max(last_s, min(ready_s) + together_s)

    def _duration_s(self, count: int, number: int) -> float:
        numbers = numbers_at_once(self.lanes)
        place = bisect_left(numbers, number)
        above = numbers[place]
        if above == number:
            return self.seconds(count, above)
        below = numbers[place - 1]
        share = (number - below) / (above - below)
        return (1 - share) * self.seconds(count, below) + share * self.seconds(count, above)
