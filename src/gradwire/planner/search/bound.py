"""A lower bound for the time of an exchange, without a replay, with which the planner prunes its search.

For all lines, hosts, and costs, no bound may exceed the result of the replay. Each bound therefore leaves out
costs that occur only in some cases.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gradwire import collectives
from gradwire.costs import ExchangeCost
from gradwire.plan import FLOAT_NBYTES
from gradwire.planner.inputs.other_world import cores
from gradwire.timing.replay.backend import as_seen_by
from gradwire.timing.replay.environment import CodecCost, Environment


def least(
    algorithm: str,
    world: int,
    count: int,
    segment_nbytes: int,
    codec: str,
    environment: Environment,
    half: str = "schedule",
) -> ExchangeCost:
    """Return a cost whose ``total_s`` is at most that of a replay of this exchange.

    - One rank sends as many bytes as the algorithm's card says of the busiest rank, at best at the rate of
      the fastest line after a burst, and its last frame takes the latency. In each half of a ring, it sends
      half of them.
    - In the reduce half, all ranks together encode ``p - 1`` partial sums of every value and add them. In the
      broadcast half, they encode the result once and decode it ``p`` times, or once less if the codec is
      exact. In each half, ``p - 1`` frames carry every segment. The rank with the most work has at least the
      average of it.
    - The cores of all machines do all of this work.

    The parameters are those of ``timing.replay.replay``.
    """
    environment = as_seen_by(algorithm, environment)
    chunks, cost = collectives.get(algorithm).chunks(world), environment.cost(codec)
    pieces = chunks * max(1, -(-(count // chunks) // (segment_nbytes // FLOAT_NBYTES)))
    halves = ("reduce", "broadcast") if half == "schedule" else (half,)
    work = sum(
        (_average_work(each, world, count, pieces, cost, environment) for each in halves), ExchangeCost()
    )
    raw_nbytes = _busiest_nbytes(algorithm, world, count) * len(halves) / 2
    wire_nbytes = raw_nbytes / FLOAT_NBYTES * _cheapest(cost, "nbytes")
    carried_nbytes = raw_nbytes / FLOAT_NBYTES * _cheapest(cost, "carried_nbytes")
    wire_s = min(
        line.latency_s + max(0.0, carried_nbytes - line.burst_nbytes) / line.nbytes_per_s
        for line in environment.lines or (environment.line,)
    )
    cores_s = work.work_s * world / cores(world, environment)
    return replace(
        work,
        wait_s=max(0.0, wire_s - work.work_s, cores_s - work.work_s),
        raw_nbytes=raw_nbytes,
        wire_nbytes=wire_nbytes,
        cores_s=cores_s if environment.host.ranks_per_machine > 1 else 0.0,
    )


def _average_work(
    half: str, world: int, count: int, pieces: int, cost: CodecCost, environment: Environment
) -> ExchangeCost:
    """Return the average work of a rank's thread in one half; a bucket consists of ``pieces`` pieces."""
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
    """Return the smallest cost over all numbers of terms in a sum."""
    return min(float(getattr(point, name)) for point in cost.all_points)


def _busiest_nbytes(algorithm: str, world: int, count: int) -> float:
    """Return the busiest rank's bytes, minus what unequal chunks may save: one float in every step."""
    share, steps = _card(algorithm, world)
    return FLOAT_NBYTES * max(0.0, share * count - steps)


@lru_cache(maxsize=1024)
def _card(algorithm: str, world: int) -> tuple[float, int]:
    """Return the busiest rank's share of a bucket and its steps, which every candidate asks for."""
    collective = collectives.get(algorithm)
    return collective.nbytes(world, 1), collective.steps(world)
