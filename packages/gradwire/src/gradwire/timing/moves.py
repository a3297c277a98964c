"""The frame orders of a replay: what each rank's thread does, frame by frame, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from gradwire import collectives
from gradwire.collectives.frame_order import AHEAD, Do, Segment, frame_order


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """The fields of an ``Action`` that the event loop reads, with ``segment`` as a number."""

    peer: int
    segment: int
    count: int
    order: tuple[int, int]
    receives: bool
    adds: bool
    encodes: bool
    publishes: bool


@dataclass(frozen=True, slots=True, eq=False)
class MoveOrder:
    """A rank's moves, in order, and whether the rank sends and receives in the same step, as in a ring."""

    moves: list[Move]
    is_both_ways: bool


@lru_cache(maxsize=512)
def move_order(algorithm: str, half: str, rank: int, world: int, count: int, segment_count: int) -> MoveOrder:
    """Return a rank's order, cached because plans with different codecs have the same orders."""
    chosen = collectives.get(algorithm)
    steps: Callable[[int, int], Iterator[collectives.Step]] = getattr(chosen, half)
    chunks, numbers = chosen.chunks(world), dict[Segment, int]()
    actions = frame_order(steps(rank, world), [count], chunks, segment_count, AHEAD)
    moves = [
        Move(
            each.peer,
            numbers.setdefault(each.segment, len(numbers)),
            each.segment.stop - each.segment.start,
            each.order,
            receives=each.receives,
            adds=each.do is Do.ADD,
            encodes=each.do in (Do.SEND_PARTIAL, Do.PUBLISH),
            publishes=each.do is Do.PUBLISH,
        )
        for each in actions
    ]
    sends = {each.step for each in actions if not each.receives}
    return MoveOrder(moves, any(each.receives and each.step in sends for each in actions))
