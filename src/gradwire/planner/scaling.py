"""How a training step scales with the number of hosts, and up to how many of them it pays.

Weak scaling: every host keeps its batch, so ``p`` hosts work on ``p`` batches in each step. The throughput is
``p`` over the step's time; the efficiency is that over ``p`` times the throughput of one host, which is
compute over step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

from gradwire.planner.query import Query
from gradwire.planner.search.exchange_times import Family
from gradwire.planner.search.predict import Prediction

LEAST_GAIN = 0.5
"""What a further host must add to the throughput to pay, as a share of what the first one does."""
FARTHEST = 64
_NONE_KNOWN: Mapping[int, Prediction] = MappingProxyType({})


@dataclass(frozen=True)
class ScalePoint:
    """The best plan's step on ``hosts`` hosts; without a prediction for a single one."""

    hosts: int
    step_s: float
    compute_s: float
    prediction: Prediction | None

    @property
    def throughput(self) -> float:
        """Batches per second of all hosts together."""
        return self.hosts / self.step_s

    @property
    def speedup(self) -> float:
        """How many times the throughput of one host it is."""
        return self.hosts * self.compute_s / self.step_s

    @property
    def efficiency(self) -> float:
        """The speedup over the number of hosts."""
        return self.compute_s / self.step_s


def scaling(
    query: Query, worlds: Sequence[int], known: Mapping[int, Prediction] = _NONE_KNOWN
) -> Iterator[ScalePoint]:
    """Yield the best plan's step for each number of hosts, rising, from 1 up.

    ``known`` has choices that have been made already, by the number of hosts. Without any time of computation
    there is nothing to compare with, and no point.
    """
    compute_s = query.workload.compute_s
    if compute_s == 0:
        return
    family = Family(query.environment)
    for world in worlds:
        if world == 1:
            yield ScalePoint(1, compute_s, compute_s, None)
        else:
            prediction = known[world] if world in known else query.answer(world, family).prediction
            yield ScalePoint(world, prediction.step_s, compute_s, prediction)


def worlds_around(hosts: int, farthest: int = FARTHEST) -> list[int]:
    """Return the powers of two up to ``farthest``, and ``hosts``."""
    return sorted({hosts, *(1 << k for k in range(farthest.bit_length()) if 1 << k <= farthest)})


def hosts_that_pay(points: Sequence[ScalePoint], least_gain: float = LEAST_GAIN) -> int:
    """Return the number of hosts up to which every further one pays; 1 where the second does not.

    From each point to the next one each further host must add at least ``least_gain`` times the throughput of
    a single host. More hosts may pay again after some that do not; ``paying_ranges`` tells.
    """
    first, *_ = (*paying_ranges(points, least_gain), (1, 1))
    return first[1] if first[0] == points[0].hosts else 1


def gains(points: Sequence[ScalePoint]) -> list[float]:
    """Return what each further host adds from each point to the next, as a share of one host's throughput."""
    return [
        (after.speedup - before.speedup) / (after.hosts - before.hosts) for before, after in pairwise(points)
    ]


def paying_ranges(points: Sequence[ScalePoint], least_gain: float = LEAST_GAIN) -> list[tuple[int, int]]:
    """Return from how many hosts to how many further ones pay, rising; neighbours are joined."""
    ranges: list[tuple[int, int]] = []
    for (before, after), gain in zip(pairwise(points), gains(points), strict=True):
        if gain >= least_gain:
            first = ranges.pop()[0] if ranges and ranges[-1][1] == before.hosts else before.hosts
            ranges.append((first, after.hosts))
    return ranges


def narrowed(query: Query, prediction: Prediction) -> Query:
    """Return the query with the codec of a prediction only (identity is always a candidate)."""
    return replace(query, codecs=(prediction.plan.encoding,))
