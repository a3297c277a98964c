"""The least that an exchange can take, without replaying it: what the planner prunes by.

Nothing here may be more than the replay says, whatever the lines, hosts and costs are: each of the bounds
leaves out what only sometimes holds.
"""

from __future__ import annotations

from dataclasses import replace

from gradwire import collectives
from gradwire.costs import ExchangeCost
from gradwire.plan import FLOAT_NBYTES
from gradwire.planner.inputs.other_world import cores
from gradwire.timing.replay.backend import as_seen_by
from gradwire.timing.replay.environment import CodecCost, Environment


def least(
    algorithm: str, world: int, count: int, segment_nbytes: int, codec: str, environment: Environment
) -> ExchangeCost:
    """Return a cost whose ``total_s`` no replay of this exchange falls below.

    - Some rank sends as much as the algorithm's card says of the busiest, at best at the rate of the fastest
      line after a burst, and its last frame takes the latency.
    - All ranks together encode every value ``p`` times (``p - 1`` partial sums, and the result), add it
      ``p - 1`` times and decode the result ``p`` times, or once less if the codec is exact; ``2 (p - 1)``
      frames carry every segment. The rank with most of that has at least the average of it.
    - The cores of all machines have to do all of that.

    The parameters are those of ``timing.replay.replay``.
    """
    environment = as_seen_by(algorithm, environment)
    collective, cost = collectives.get(algorithm), environment.cost(codec)
    chunks = collective.chunks(world)
    pieces = chunks * max(1, -(-(count // chunks) // (segment_nbytes // FLOAT_NBYTES)))
    work = _average_work(world, count, pieces, cost, environment)
    raw_nbytes = _busiest_nbytes(collective, world, count)
    wire_nbytes = raw_nbytes / FLOAT_NBYTES * _cheapest(cost, "nbytes")
    wire_s = min(
        line.latency_s + max(0.0, wire_nbytes - line.burst_nbytes) / line.nbytes_per_s
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
    world: int, count: int, pieces: int, cost: CodecCost, environment: Environment
) -> ExchangeCost:
    """Return what every rank's thread does on average; a bucket goes in so many ``pieces``."""
    host, others = environment.host, world - 1
    frames = 2 * others * pieces / world
    nbytes = 2 * others / world * count * _cheapest(cost, "nbytes") + frames * environment.header_nbytes
    adopted = 0.0 if cost.exact else 1 / world
    added_s = count * others / world * _cheapest(cost, "decode_add_s")
    stored_s = count * (others / world + adopted) * _cheapest(cost, "decode_s")
    return ExchangeCost(
        encode_s=count * _cheapest(cost, "encode_s") + pieces * cost.call_s,
        decode_s=added_s + stored_s + (frames + adopted * pieces) * cost.call_s,
        handling_s=frames * (host.send_s + host.receive_s)
        + nbytes * (host.send_s_per_nbyte + host.receive_s_per_nbyte),
    )


def _cheapest(cost: CodecCost, name: str) -> float:
    """Return the least of a cost over all numbers of terms in a sum."""
    return min(float(getattr(point, name)) for point in cost.points)


def _busiest_nbytes(collective: collectives.Collective, world: int, count: int) -> float:
    """Return what the busiest rank sends, less what unequal chunks may save it: a float in every step."""
    nbytes = collective.nbytes(world, FLOAT_NBYTES * count)
    return max(0.0, nbytes - FLOAT_NBYTES * collective.steps(world))
