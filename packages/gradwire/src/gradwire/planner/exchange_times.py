"""The times of exchanges in one environment, cached, and computed by the cheapest sufficient method.

- Up to ``REPLAYED_WORLD`` ranks, an exchange is replayed frame by frame.
- A bucket of very many frames isn't replayed as a whole. With segments of one size, the time grows by an
  equal amount with each segment, so the times of two shorter buckets determine the time of the whole bucket.
- With more ranks, the schedule is simulated step by step, and the result is scaled by the ratio of replay
  and simulation for ``REPLAYED_WORLD`` ranks.

No time is below the lower bound that ``least`` returns.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from gradwire import collectives
from gradwire.codecs import Identity
from gradwire.costs import ExchangeCost
from gradwire.errors import SpecError
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.timing.environment import CodecCost, CodecPoint, Environment, as_seen_by
from gradwire.timing.replay import replaying
from gradwire.timing.simulate import Wires, simulate


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """The fields of a plan that determine one bucket's exchange, without the pipeline and the bucket size.

    ``half`` is as in ``timing.replay.replay``; only a ring has separate halves. ``lanes`` equal buckets are
    exchanged at the same time; a cost then contains the seconds of all these buckets, divided by their
    number.
    """

    algorithm: str
    segment_nbytes: int
    codec: str
    residual: bool = False
    half: str = "schedule"
    lanes: int = 1

    @classmethod
    def of(cls, plan: Plan) -> BucketPlan:
        """Return the fields of ``plan``.

        Raises ``SpecError`` if the plan has several codecs or encodes on a device, which isn't measured.
        """
        replace(plan, lanes=1).for_one_codec("the planner")
        if plan.encodes_on_device:
            raise SpecError(
                "expected a plan with encode_on='host', got 'device', for which the planner has no costs; "
                "change encode_on to 'host'"
            )
        half = "reduce" if plan.is_sharded else "schedule"
        spec, residual = str(plan.encoding), plan.keeps_residual
        return cls(plan.algorithm, plan.segment_nbytes, spec, residual, half, plan.lanes)


_RESIDUAL_PASSES = 7


def among(environment: Environment, world: int) -> Environment:
    """Return the environment resized to ``world`` ranks, with links and groups repeated as needed.

    All groups have the size of the first group, except that the last group may be smaller; links repeat from
    the first link on. If ranks share a machine, all ``world`` ranks share it.
    """
    host = environment.host
    if host.ranks_per_machine > 1:
        host = replace(host, ranks_per_machine=world)
    lines = (
        tuple(environment.line_of(rank % len(environment.lines)) for rank in range(world))
        if environment.lines
        else ()
    )
    return replace(environment, host=host, lines=lines, groups=_groups(environment.groups, world))


def with_residuals(environment: Environment, codec: str) -> Environment:
    """Return the environment with the cost of keeping residuals for ``codec``.

    The cost per value is one decoding of every encoded value and ``_RESIDUAL_PASSES`` passes over memory,
    each as long as identity's decoding: to gather, add, subtract, check, and store residuals.
    """
    cost, identity = environment.cost(codec), environment.codecs.get(str(Identity()))

    def slower(point: CodecPoint) -> CodecPoint:
        passes_s = 0.0 if identity is None else _RESIDUAL_PASSES * identity.at(point.terms).decode_s
        return replace(point, encode_s=point.encode_s + point.decode_s + passes_s)

    finished = None if cost.finished is None else slower(cost.finished)
    found = replace(cost, points=tuple(map(slower, cost.points)), finished=finished)
    return replace(environment, codecs={**environment.codecs, codec: found})


def cores(world: int, environment: Environment) -> int:
    """Return the total number of cores of the machines of ``world`` ranks."""
    per_machine = max(1, environment.host.ranks_per_machine)
    return -(-world // per_machine) * environment.host.cores


def _groups(groups: tuple[int, ...], world: int) -> tuple[int, ...]:
    if not groups or sum(groups) == world:
        return groups
    whole, rest = divmod(world, groups[0])
    return (groups[0],) * whole + ((rest,) if rest else ())


# A bound, which prunes the planner's search, may never exceed the replayed time, for any links, hosts, and
# costs. So the bound omits all costs that occur only in some cases.


def least(plan: BucketPlan, world: int, count: int, environment: Environment) -> ExchangeCost:
    """Return a cost whose ``total_s`` is a lower bound on this exchange's replayed time.

    - The busiest rank sends the algorithm's bytes, at best at the rate of the fastest link after a burst. The
      last frame also takes the latency. In each half of a ring, the rank sends half of these bytes.
    - In the reduce half, all ranks together encode ``p - 1`` partial sums of every value and add them. In the
      broadcast half, all ranks together encode the result once and decode it ``p`` times, or ``p - 1`` times
      if the codec is exact. In each half, ``p - 1`` frames carry every segment. The busiest rank does at
      least the average work.
    - All of this work runs on the cores of the machines.

    Lanes share links and cores. Each lane's thread does the work of its own bucket.
    """
    environment = as_seen_by(plan.algorithm, environment)
    chunks, cost = collectives.get(plan.algorithm).chunks(world), environment.cost(plan.codec)
    pieces = chunks * max(1, -(-(count // chunks) // (plan.segment_nbytes // FLOAT_NBYTES)))
    halves = ("reduce", "broadcast") if plan.half == "schedule" else (plan.half,)
    work = sum(
        (_average_work(each, world, count, pieces, cost, environment) for each in halves), ExchangeCost()
    )
    share, steps = _card(plan.algorithm, world)
    busiest_nbytes = FLOAT_NBYTES * max(0.0, share * count - steps)  # unequal chunks save one float a step
    raw_nbytes = busiest_nbytes * len(halves) / 2
    wire_nbytes = raw_nbytes / FLOAT_NBYTES * _cheapest(cost, "nbytes")
    carried_nbytes = raw_nbytes / FLOAT_NBYTES * _cheapest(cost, "carried_nbytes")
    wire_s = min(
        line.latency_s + max(0.0, plan.lanes * carried_nbytes - line.burst_nbytes) / line.nbytes_per_s
        for line in environment.lines or (environment.line,)
    )
    cores_s = work.work_s * world / cores(world, environment)
    found = replace(
        work,
        wait_s=max(0.0, wire_s - work.work_s, plan.lanes * cores_s - work.work_s),
        raw_nbytes=raw_nbytes,
        wire_nbytes=wire_nbytes,
        cores_s=cores_s if environment.host.ranks_per_machine > 1 else 0.0,
    )
    return found.slowed(1 / plan.lanes)


def _average_work(
    half: str, world: int, count: int, pieces: int, cost: CodecCost, environment: Environment
) -> ExchangeCost:
    host, others = environment.host, world - 1
    frames = others * pieces / world
    nbytes = others / world * count * _cheapest(cost, "nbytes") + frames * environment.header_nbytes
    adds = half == "reduce"
    encodings, adopted = (others / world, 0.0) if adds else (1 / world, 0.0 if cost.exact else 1 / world)
    taken_s = count * others / world * _cheapest(cost, "decode_add_s" if adds else "decode_s")
    return ExchangeCost(
        encode_s=encodings * (count * _cheapest(cost, "encode_s") + pieces * cost.call_s),
        decode_s=taken_s
        + adopted * count * _cheapest(cost, "decode_s")
        + (frames + adopted * pieces) * cost.call_s,
        handling_s=frames * (host.send_s + host.receive_s)
        + nbytes * (host.send_s_per_nbyte + host.receive_s_per_nbyte),
    )


def _cheapest(cost: CodecCost, name: str) -> float:
    return min(float(getattr(point, name)) for point in cost.all_points)


@lru_cache(maxsize=1024)
def _card(algorithm: str, world: int) -> tuple[float, int]:
    """Return which share of a bucket the busiest rank sends, and in how many steps; cached."""
    collective = collectives.get(algorithm)
    return collective.nbytes(world, 1), collective.steps(world)


REPLAYED_WORLD = 16
MOST_FRAMES = 1200
"""The largest number of frames to replay; a replay takes 10 us per frame, most of it for their order."""
FEWEST_SEGMENTS = 3
"""The number of segments per chunk in the shorter bucket to extrapolate from: enough to keep links busy."""
_FASTEST_NBYTES_PER_S = 1e15
"""The rate that represents an infinitely fast link where a finite rate is needed."""


@dataclass(frozen=True, slots=True)
class ReplayEffort:
    """The limits of replays, a trade-off between accuracy and run time."""

    # more frames are extrapolated from two shorter buckets, the second with twice as many segments
    frames: int = MOST_FRAMES
    segments: int = FEWEST_SEGMENTS  # in each chunk of the shorter bucket
    # bucket sizes from one power of two to the next, between which times are interpolated
    per_octave: int = 4


USUAL = ReplayEffort()
QUICK = ReplayEffort(frames=200, segments=1, per_octave=1)
"""The effort of replays between two training steps: with up to four ranks, a replay takes less than 2 ms."""


class Family:
    """The exchange times in one environment, cached for each number of ranks."""

    def __init__(self, environment: Environment, effort: ReplayEffort = USUAL) -> None:
        self.environment, self.effort = environment, effort
        self._of_world: dict[int, ExchangeTimes] = {}

    def among(self, world: int) -> ExchangeTimes:
        """Return the times of exchanges between ``world`` ranks."""
        if world not in self._of_world:
            self._of_world[world] = ExchangeTimes(self, world)
        return self._of_world[world]


class ExchangeTimes:
    """The times of exchanges between ``world`` ranks, created by ``Family.among``."""

    def __init__(self, family: Family, world: int) -> None:
        self._family, self.world, self._effort = family, world, family.effort
        self.environment = among(family.environment, world)
        self._with_residuals = lru_cache(None)(partial(with_residuals, self.environment))
        self._known: dict[tuple[BucketPlan, int], ExchangeCost] = {}
        self._replays: dict[tuple[BucketPlan, int], ExchangeCost] = {}
        self._bounds: dict[tuple[BucketPlan, int], ExchangeCost] = {}

    def least(self, plan: BucketPlan, count: int) -> ExchangeCost:
        """Return a lower bound on the cost of an exchange of ``count`` floats."""
        key = plan, count
        if key not in self._bounds:
            self._bounds[key] = least(plan, self.world, count, self.environment)
        return self._bounds[key]

    def terms(self, plan: BucketPlan, count: int) -> ExchangeCost:
        """Return the cost of an exchange of ``count`` floats, divided into its terms."""
        key = plan, count
        if key not in self._known:
            find = self._replayed_or_extended if self.world <= REPLAYED_WORLD else self._walked
            self._known[key] = _at_least(find(plan, count), self.least(plan, count))
        return self._known[key]

    def between(self, plan: BucketPlan, count: int) -> ExchangeCost:
        """Return the cost of ``count`` floats by linear interpolation between sizes of ``grid_counts``."""
        below, *above = self.grid_counts(count)
        found = self.terms(plan, below)
        if above:
            found = found.towards(self.terms(plan, above[0]), (count - below) / (above[0] - below))
        return _at_least(found, self.least(plan, count))

    def grid_counts(self, count: int) -> tuple[int, ...]:
        """Return ``count`` if it is a grid size of ``ReplayEffort``, else the grid sizes below and above."""
        apart = max(1, (1 << max(0, count.bit_length() - 1)) // self._effort.per_octave)
        below = count // apart * apart
        return (below,) if below == count else (below, below + apart)

    def _replayed_or_extended(self, plan: BucketPlan, count: int) -> ExchangeCost:
        for _ in self.replays(plan, count):
            pass
        most = self._most_lanes(plan)
        if plan.lanes > most:
            return self._with_more_lanes(plan, count, most)
        fewer, *more = self._replayed_counts(plan, count)
        short = self._replays[plan, fewer]
        if not more:
            return short
        return short.towards(self._replays[plan, more[0]], (count - fewer) / (more[0] - fewer))

    def _most_lanes(self, plan: BucketPlan) -> int:
        """Return the largest number of lanes that is replayed, a power of two, and at least 2."""
        frames = 2 * (self.world - 1) * collectives.get(plan.algorithm).chunks(self.world)
        return max(2, 1 << (self._effort.frames // max(1, 2 * frames)).bit_length() >> 1)

    def _with_more_lanes(self, plan: BucketPlan, count: int, most: int) -> ExchangeCost:
        """Extrapolate the seconds of all lanes linearly, from ``most // 2`` and ``most`` lanes."""
        fewer, more = (self.terms(replace(plan, lanes=lanes), count) for lanes in (most // 2, most))
        each_s = max(0.0, (more.total_s * most - fewer.total_s * (most // 2)) / (most - most // 2))
        seconds = (more.total_s * most + (plan.lanes - most) * each_s) / plan.lanes
        return more.slowed(seconds / more.total_s if more.total_s else 1.0)

    def _replayed_counts(self, plan: BucketPlan, count: int) -> tuple[int, ...]:
        """Return ``count``, or the sizes of two shorter buckets to extrapolate from, in floats."""
        chunks = collectives.get(plan.algorithm).chunks(self.world)
        whole = chunks * plan.segment_nbytes // FLOAT_NBYTES  # one segment in each chunk
        frames = 2 * (self.world - 1) * chunks * plan.lanes
        most = self._effort.frames
        fewer = max(self._effort.segments if plan.lanes == 1 else 1, most // (3 * frames))
        if frames * count / whole <= max(most, 3 * fewer * frames):
            return (count,)
        return fewer * whole, 2 * fewer * whole

    def replays(self, plan: BucketPlan, count: int) -> Iterator[None]:
        """Run the replays that ``terms`` needs, in pieces of about a millisecond."""
        if self.world > REPLAYED_WORLD:
            yield from self._family.among(REPLAYED_WORLD).replays(plan, count)
            return
        most = self._most_lanes(plan)
        if plan.lanes > most:
            for lanes in (most // 2, most):
                yield from self.replays(replace(plan, lanes=lanes), count)
            return
        for each in self._replayed_counts(plan, count):
            if (plan, each) not in self._replays:
                self._replays[plan, each] = yield from self._replay(plan, each)

    def _replay(self, plan: BucketPlan, count: int) -> Generator[None, None, ExchangeCost]:
        environment = self._with_residuals(plan.codec) if plan.residual else self.environment
        how = plan.algorithm, self.world, count, plan.segment_nbytes, plan.codec, environment, plan.half
        done = yield from replaying(*how, plan.lanes)
        busiest = max(done.ranks, key=lambda rank: rank.wire_nbytes)
        host = environment.host
        work_s = sum(rank.work_s for rank in done.ranks)
        work_s += sum(rank.wire_nbytes for rank in done.ranks) * 2 * host.beside_s_per_nbyte
        cores_s = work_s / cores(self.world, environment) / plan.lanes
        return replace(
            done.last.slowed(1 / plan.lanes),
            raw_nbytes=busiest.raw_nbytes,
            wire_nbytes=busiest.wire_nbytes,
            frames=busiest.frames,
            cores_s=cores_s if host.ranks_per_machine > 1 else 0.0,
        )

    def _walked(self, plan: BucketPlan, count: int) -> ExchangeCost:
        fewer = self._family.among(REPLAYED_WORLD)
        scale = fewer.terms(plan, count).total_s / fewer.walk_s(plan, count)
        terms = self.least(plan, count)
        seconds = scale * self.walk_s(plan, count)
        return replace(terms, wait_s=max(0.0, seconds - terms.work_s))

    def walk_s(self, plan: BucketPlan, count: int) -> float:
        """Return the seconds of a schedule without pipelining, divided by the number of lanes."""
        environment = as_seen_by(plan.algorithm, self.environment)
        host = environment.host
        cost = environment.cost(plan.codec)
        typical = cost.typical(self.world)
        lines = [environment.line_of(rank) for rank in range(self.world)]
        rates = np.array([min(line.nbytes_per_s, _FASTEST_NBYTES_PER_S) for line in lines])
        handling_s = host.send_s + host.receive_s + 2 * cost.call_s
        per_rank = environment.usable_cores(plan.lanes) // max(1, host.ranks_per_machine)
        at_once = max(1, min(plan.lanes, per_rank))
        sizes = environment.groups or (self.world,)
        uplink = min(environment.core_nbytes_per_s, _FASTEST_NBYTES_PER_S)
        done = simulate(
            collectives.get(plan.algorithm),
            Wires(
                rates,
                rates,
                max(line.latency_s for line in lines) + handling_s,
                np.repeat(np.arange(len(sizes)), sizes),
                np.full(len(sizes), uplink),
            ),
            FLOAT_NBYTES * count * plan.lanes,
            ratio=min(cost.ratio(self.world), 1e6),
            reduce_s_per_nbyte=(typical.encode_s + typical.decode_add_s) / FLOAT_NBYTES / at_once,
        )
        return max(done.total_s, math.ulp(1.0)) / plan.lanes


def _at_least(terms: ExchangeCost, bound: ExchangeCost) -> ExchangeCost:
    missing_s = max(0.0, bound.total_s - terms.total_s)
    return replace(terms, wait_s=terms.wait_s + missing_s, cores_s=max(terms.cores_s, bound.cores_s))
