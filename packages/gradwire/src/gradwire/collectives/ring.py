"""Ring all-reduce: a reduce-scatter, then an all-gather. Every rank talks only to its two neighbours.

The bucket is cut into one chunk per rank. In step ``k`` of the reduce half, rank ``r`` sends its partial sum
of chunk ``r - k`` to the right, and adds the partial sum from the left to chunk ``r - k - 1``. After
``p - 1`` steps, rank ``r`` owns the sum of chunk ``r + 1``. In the broadcast half, the finished chunks travel
around the ring once more.

Card, for ``p`` ranks and a bucket of ``n`` bytes:

- steps: ``2 (p - 1)``
- bytes sent by every rank: ``2 (p - 1) / p n``; received: the same
- extra memory: none beyond the frames in flight
- exactness: chunk ``c`` is summed in the order ``c, c + 1, ..., c + p - 1`` (modulo ``p``), each partial sum
  rounded to float32; a codec encodes a sum ``p`` times, so the error is at most ``p`` times its bound
- source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69
  (2009); the exchange of INCEPTIONN, MICRO 2018, Algorithm 1
"""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.collectives.step import Step, both_halves

ROTATES = True


def chunks(world: int) -> int:
    """Return the number of chunks of a bucket: one per rank."""
    return world


def owner(chunk: int, world: int) -> int:
    """Return the rank that finishes a chunk: the left neighbour of the rank that started its sum."""
    return (chunk - 1) % world


def reduce(rank: int, world: int) -> Iterator[Step]:
    """Yield one rank's steps of the reduce-scatter. The rank then owns the sum of chunk ``rank + 1``."""
    return _around(rank, world, first=rank, combine=True)


def broadcast(rank: int, world: int) -> Iterator[Step]:
    """Yield one rank's steps of the all-gather. The rank first sends chunk ``rank + 1``, which it owns."""
    return _around(rank, world, first=rank + 1, combine=False)


schedule = both_halves(reduce, broadcast)


def steps(world: int) -> int:
    """Return the length of the critical path in hops."""
    return 2 * (world - 1)


def nbytes(world: int, n: int) -> float:
    """Return the bytes that the busiest rank sends for a bucket of ``n`` bytes."""
    return 2 * (world - 1) * n / world


def _around(rank: int, world: int, *, first: int, combine: bool) -> Iterator[Step]:
    right, left = (rank + 1) % world, (rank - 1) % world
    for k in range(world - 1):
        send, recv = (first - k) % world, (first - k - 1) % world
        yield Step(right, (send, send + 1), left, (recv, recv + 1), combine)
