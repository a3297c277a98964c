"""The steps of a collective. A collective is data: each algorithm is a pure generator of steps.

A bucket is cut into ``chunks(world)`` chunks of nearly equal size. A schedule is the ordered list of one
rank's steps. An all-reduce consists of two halves:

- In the **reduce** half, every received chunk is combined (decoded and added), and every sent chunk is the
  sender's current partial sum, encoded again.
- In the **broadcast** half, the owner of a finished chunk encodes it once and adopts its own decoded value.
  Every other rank stores the received values and forwards the payload unchanged, so that all ranks end with
  identical bits.

An algorithm is a module, or an object, with the attributes of ``Collective``. It must be possible to number
the messages of all ranks so that a step's send and receive have the same number, and numbers increase along
every rank's schedule. Such numbers keep an exchange free of deadlock. Tests check ``steps`` and ``nbytes``
against the schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

ROOT = 0
"""The rank that has the sums between the halves of a tree or star."""
WHOLE, NOTHING = (0, 1), (0, 0)
"""The chunks of a step that moves an unchunked bucket, and of a step without a send or receive."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a rank's schedule: a send, a receive, or both at once.

    ``send_to`` and ``recv_from`` are ranks or None. ``send`` and ``recv`` are half-open ranges of chunk
    numbers, ``(0, 0)`` without a send or receive. ``combine`` says whether received values are added to the
    rank's own chunk (the reduce half) or replace it (the broadcast half); a combining step encodes its
    chunks again before it sends them.
    """

    send_to: int | None
    send: tuple[int, int]
    recv_from: int | None
    recv: tuple[int, int]
    combine: bool


Schedule = Callable[[int, int], Iterator[Step]]
"""A function of a rank and the world size that yields the rank's steps."""


def both_halves(reduce: Schedule, broadcast: Schedule) -> Schedule:
    """Return the function that yields one rank's whole schedule."""
    return lambda rank, world: chain(reduce(rank, world), broadcast(rank, world))


class Collective(Protocol):
    """The interface of an algorithm, for any world size from 1 up."""

    ROTATES: bool
    """Whether every schedule is rank 0's schedule with all ranks and chunks shifted by the rank's number.

    Ranks are modulo ``world``, chunks are modulo ``chunks``, and every range is a single chunk. A simulation
    of thousands of ranks then needs only one schedule.
    """

    def chunks(self, world: int) -> int:
        """Return the number of chunks of a bucket."""

    def owner(self, chunk: int, world: int) -> int:
        """Return the rank that finishes a chunk in the reduce half, and starts the chunk's broadcast."""

    def reduce(self, rank: int, world: int) -> Iterator[Step]:
        """Yield one rank's steps of the reduce half."""

    def broadcast(self, rank: int, world: int) -> Iterator[Step]:
        """Yield one rank's steps of the broadcast half."""

    def schedule(self, rank: int, world: int) -> Iterator[Step]:
        """Yield one rank's whole schedule: the reduce half, then the broadcast half."""

    def steps(self, world: int) -> int:
        """Return the length of the critical path in hops."""

    def nbytes(self, world: int, n: int) -> float:
        """Return the bytes that the busiest rank sends for a bucket of ``n`` bytes in equal chunks."""
