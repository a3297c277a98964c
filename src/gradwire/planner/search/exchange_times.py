"""The times of exchanges in one environment, cached, each found by the cheapest method that is exact enough.

- Up to ``REPLAYED_WORLD`` ranks, an exchange is replayed frame by frame.
- A bucket of very many frames isn't replayed as a whole: with whole segments of one size, the time grows by
  the same amount with each segment, so two shorter buckets determine the time of the whole bucket.
- With more ranks, the steps of the schedule are walked, and the result is scaled by the ratio of replay and
  walk for ``REPLAYED_WORLD`` ranks.

No time is less than the lower bound of ``bound.least``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from gradwire import collectives
from gradwire.costs import ExchangeCost
from gradwire.errors import SpecError
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.planner.inputs.other_world import among, cores, with_residuals
from gradwire.planner.search.bound import least
from gradwire.timing.replay.backend import as_seen_by
from gradwire.timing.replay.environment import Environment
from gradwire.timing.replay.replay import Replay, replay
from gradwire.timing.schedule_model.network import Groups, Network
from gradwire.timing.schedule_model.simulate import simulate

REPLAYED_WORLD = 16
MOST_FRAMES = 1200
"""A replay takes about 50 us per frame."""
FEWEST_SEGMENTS = 3
"""The segments in each chunk of the shorter of two buckets, with which the lines are fully busy."""
_FASTEST_NBYTES_PER_S = 1e15
"""The rate of a line that takes no time, where a finite rate is needed."""


@dataclass(frozen=True, slots=True)
class Way:
    """The way to exchange a bucket: a plan without its pipeline and its buckets.

    ``codec`` is the spec of the plan's encoding, and ``half`` is that of ``timing.replay.replay``; only of a
    ring there are halves by themselves.
    """

    algorithm: str
    segment_nbytes: int
    codec: str
    residual: bool = False
    half: str = "schedule"

    @classmethod
    def of(cls, plan: Plan) -> Way:
        """Return the way in which the gradient of each of the plan's buckets is exchanged.

        Raises ``SpecError`` for a plan whose costs nobody has measured.
        """
        plan.for_one_codec("the planner")
        if plan.encodes_on_device:
            raise SpecError(
                "the planner knows what encoding costs on the host, but the plan encodes on a device; use "
                "encode_on='host'"
            )
        half = "reduce" if plan.is_sharded else "schedule"
        return cls(plan.algorithm, plan.segment_nbytes, str(plan.encoding), plan.keeps_residual, half)


class Family:
    """The times of exchanges in one environment, for any number of ranks, which share one cache."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._of_world: dict[int, ExchangeTimes] = {}

    def among(self, world: int) -> ExchangeTimes:
        """Return the times between ``world`` ranks."""
        if world not in self._of_world:
            self._of_world[world] = ExchangeTimes(self, world)
        return self._of_world[world]


class ExchangeTimes:
    """The times of exchanges between ``world`` ranks, as ``Family`` creates it."""

    def __init__(self, family: Family, world: int) -> None:
        self._family, self.world = family, world
        self.environment = among(family.environment, world)
        self._with_residuals = lru_cache(None)(partial(with_residuals, self.environment))
        self._known: dict[tuple[Way, int], ExchangeCost] = {}
        self._bounds: dict[tuple[Way, int], ExchangeCost] = {}

    def least(self, way: Way, count: int) -> ExchangeCost:
        """Return a lower bound for the exchange of ``count`` floats."""
        key = way, count
        if key not in self._bounds:
            self._bounds[key] = least(
                way.algorithm, self.world, count, way.segment_nbytes, way.codec, self.environment, way.half
            )
        return self._bounds[key]

    def terms(self, way: Way, count: int) -> ExchangeCost:
        """Return the time of an exchange of ``count`` floats, by its terms."""
        key = way, count
        if key not in self._known:
            self._known[key] = _at_least(self._find(way, count), self.least(way, count))
        return self._known[key]

    def between(self, way: Way, count: int) -> ExchangeCost:
        """Return the time of ``count`` floats, by linear interpolation between round numbers.

        There are four such numbers from one power of two to the next. This is for models with many buckets
        of different sizes.
        """
        apart = max(1, (1 << max(0, count.bit_length() - 1)) // 4)
        below, beyond = divmod(count, apart)
        found = self.terms(way, below * apart)
        if beyond:
            found = found.towards(self.terms(way, (below + 1) * apart), beyond / apart)
        return _at_least(found, self.least(way, count))

    def _find(self, way: Way, count: int) -> ExchangeCost:
        if self.world <= REPLAYED_WORLD:
            return self._replayed_or_extended(way, count)
        return self._walked(way, count)

    def _replayed_or_extended(self, way: Way, count: int) -> ExchangeCost:
        chunks = collectives.get(way.algorithm).chunks(self.world)
        whole = chunks * way.segment_nbytes // FLOAT_NBYTES  # one segment in each chunk
        frames = 2 * (self.world - 1) * chunks
        fewer = max(FEWEST_SEGMENTS, MOST_FRAMES // (3 * frames))
        if frames * count / whole <= max(MOST_FRAMES, 3 * fewer * frames):
            return self._replayed(way, count)
        short, long = (self._replayed(way, each * whole) for each in (fewer, 2 * fewer))
        return short.towards(long, (count / whole - fewer) / fewer)

    def _replayed(self, way: Way, count: int) -> ExchangeCost:
        environment = self._with_residuals(way.codec) if way.residual else self.environment
        done = replay(way.algorithm, self.world, count, way.segment_nbytes, way.codec, environment, way.half)
        busiest = max(done.ranks, key=lambda rank: rank.wire_nbytes)
        return replace(
            done.last,
            raw_nbytes=busiest.raw_nbytes,
            wire_nbytes=busiest.wire_nbytes,
            frames=busiest.frames,
            cores_s=self._cores_s(done) if environment.host.ranks_per_machine > 1 else 0.0,
        )

    def _cores_s(self, done: Replay) -> float:
        host = self.environment.host
        work_s = sum(rank.work_s for rank in done.ranks)
        work_s += sum(rank.wire_nbytes for rank in done.ranks) * 2 * host.beside_s_per_nbyte
        return work_s / cores(self.world, self.environment)

    def _walked(self, way: Way, count: int) -> ExchangeCost:
        fewer = self._family.among(REPLAYED_WORLD)
        scale = fewer.terms(way, count).total_s / fewer.walk_s(way, count)
        terms = self.least(way, count)
        return replace(terms, wait_s=max(0.0, scale * self.walk_s(way, count) - terms.work_s))

    def walk_s(self, way: Way, count: int) -> float:
        """Return the seconds of a walk over the steps: every hop by itself, one after the other."""
        environment = as_seen_by(way.algorithm, self.environment)
        host = environment.host
        cost = environment.cost(way.codec)
        typical = cost.typical(self.world)
        lines = [environment.line_of(rank) for rank in range(self.world)]
        rates = tuple(min(line.nbytes_per_s, _FASTEST_NBYTES_PER_S) for line in lines)
        handling_s = host.send_s + host.receive_s + 2 * cost.call_s
        groups = None
        if environment.groups:
            of = tuple(number for number, size in enumerate(environment.groups) for _ in range(size))
            groups = Groups(of, min(environment.core_nbytes_per_s, _FASTEST_NBYTES_PER_S))
        network = Network(
            self.world,
            rates,
            rates,
            latency_s=max(line.latency_s for line in lines) + handling_s,
            reduce_s_per_nbyte=(typical.encode_s + typical.decode_add_s) / FLOAT_NBYTES,
            groups=groups,
        )
        ratio = min(cost.ratio(self.world), 1e6)
        done = simulate(collectives.get(way.algorithm), network, FLOAT_NBYTES * count, ratio=ratio)
        return max(done.total_s, math.ulp(1.0))


def _at_least(terms: ExchangeCost, bound: ExchangeCost) -> ExchangeCost:
    missing_s = max(0.0, bound.total_s - terms.total_s)
    return replace(terms, wait_s=terms.wait_s + missing_s, cores_s=max(terms.cores_s, bound.cores_s))
