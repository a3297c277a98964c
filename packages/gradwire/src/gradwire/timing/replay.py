"""Replay an exchange frame by frame, without sending a byte, by the rules in ``native/replay``.

Every rank handles frames in the order of the exchange, with the same window of frames in flight and of posted
receives. Ranks that share a machine wait for a free core, streams over one link share it fairly, and lanes
exchange one bucket each, concurrently. An exchange overlaps neighbouring segments and peers, so only the
replay of a ring with free codecs, one frame per chunk, and no burst equals its closed form.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import lru_cache

from gradwire import _native, collectives
from gradwire.collectives.frame_order import AHEAD, action_rows, frame_order
from gradwire.costs import ExchangeCost
from gradwire.errors import SpecError
from gradwire.timing.environment import Environment, as_seen_by


@dataclass
class Replay:
    """The result of a replay: the ranks' costs, and the time that the busiest link needs for its bytes.

    With several lanes, ``ranks`` lists all ranks' costs of the first lane, then of the next lane.
    """

    ranks: list[ExchangeCost]
    line_busy_s: float

    @property
    def total_s(self) -> float:
        """The seconds until the last rank is done."""
        return max(rank.total_s for rank in self.ranks)

    @property
    def last(self) -> ExchangeCost:
        """The cost of the rank that finishes last."""
        return max(self.ranks, key=lambda rank: rank.total_s)


def replay(
    algorithm: str,
    world: int,
    count: int,
    segment_nbytes: int,
    codec: str,
    environment: Environment,
    half: str = "schedule",
    lanes: int = 1,
) -> Replay:
    """Return the replay of an exchange of ``count`` float32 values between ``world`` ranks.

    ``half`` is ``schedule`` for the all-reduce, or ``reduce`` or ``broadcast``. ``lanes`` equal buckets are
    exchanged concurrently, with a cost for each lane. Raises ``SpecError`` if the algorithm is unknown or its
    schedule is invalid, or if the codec has no costs.
    """
    pieces = replaying(algorithm, world, count, segment_nbytes, codec, environment, half, lanes)
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            found: Replay = done.value
            return found


def replaying(
    algorithm: str,
    world: int,
    count: int,
    segment_nbytes: int,
    codec: str,
    environment: Environment,
    half: str = "schedule",
    lanes: int = 1,
) -> Generator[None, None, Replay]:
    """Compute the result of ``replay``, in pieces of about a millisecond."""
    orders = []
    for rank in range(world):
        orders.append(_rows(algorithm, half, rank, world, count, segment_nbytes // 4))
        yield
    environment = as_seen_by(algorithm, environment)
    cost, host = environment.cost(codec), environment.host
    per_machine = max(1, host.ranks_per_machine)
    points = [cost.of(terms, world) for terms in range(1, world + 1)]
    try:
        costs, line_busy_s = _native.replay(
            [(*rows.buffer_info(), segments) for rows, segments in orders],
            [_line(environment, rank) for rank in range(world)],
            [(it.nbytes, it.carried_nbytes, it.encode_s, it.decode_s, it.decode_add_s) for it in points],
            cost.call_s,
            cost.exact,
            (
                host.send_s,
                host.receive_s,
                host.send_s_per_nbyte,
                host.receive_s_per_nbyte,
                host.beside_s_per_nbyte,
            ),
            environment.header_nbytes,
            environment.groups or (world,),
            environment.core_nbytes_per_s,
            world if half == "broadcast" else 1,
            lanes,
            AHEAD,
            min(environment.usable_cores(lanes), (1 + lanes) * per_machine),
            per_machine,
        )
    except ValueError as error:
        raise SpecError(
            f"expected the schedules of {world} ranks to match, got different ones from {algorithm} "
            f"({error}); correct the algorithm's schedule"
        ) from error
    return Replay([ExchangeCost(*seconds_and_nbytes) for seconds_and_nbytes in costs], line_busy_s)


@lru_cache(maxsize=512)
def _rows(
    algorithm: str, half: str, rank: int, world: int, count: int, segment_count: int
) -> tuple[array[int], int]:
    """Return a rank's rows of actions; cached, because plans that differ only in the codec share them."""
    chosen = collectives.get(algorithm)
    steps: Callable[[int, int], Iterator[collectives.Step]] = getattr(chosen, half)
    return action_rows(frame_order(steps(rank, world), [count], chosen.chunks(world), segment_count, AHEAD))


def _line(environment: Environment, rank: int) -> tuple[float, float, float, float]:
    line = environment.line_of(rank)
    return line.latency_s, line.nbytes_per_s, line.burst_nbytes, line.duplex_share
