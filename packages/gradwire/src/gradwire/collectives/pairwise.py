"""Pairwise all-reduce: every rank sends each chunk to its owner; each owner then sends the sum to all ranks.

The bucket is cut into one chunk per rank. In step ``k`` of the reduce half, rank ``r`` sends its values of
chunk ``r + k`` to that chunk's owner, the rank ``r + k``, and adds the values from rank ``r - k`` to chunk
``r``. In step ``k`` of the broadcast half, rank ``r`` sends the sum of chunk ``r`` to rank ``r + k``. Only
the sums wait for other ranks' frames, so a bucket costs two latencies. A value is encoded only twice: as a
rank's own gradient, and in the sum.

Card, for ``p`` ranks and a bucket of ``n`` bytes:

- steps: ``2 (p - 1)``; the steps of a half don't wait for each other
- bytes sent by every rank: ``2 (p - 1) / p n``; received: the same
- extra memory: a rank keeps its encoded sum, one part in ``p`` of the bucket, until the last rank has it
- exactness: chunk ``c`` is summed in the order ``c, c - 1, ..., c - p + 1`` (modulo ``p``), each partial sum
  rounded to float32; a codec encodes ``p - 1`` terms and the sum, so the error is at most ``p`` times its
  bound
- source: the pairwise exchange of Thakur, Rabenseifner and Gropp, Optimization of collective communication
  operations in MPICH, IJHPCA 19 (2005)
"""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.collectives.ring import ROTATES, chunks, nbytes
from gradwire.collectives.step import Step, both_halves

__all__ = ["ROTATES", "broadcast", "chunks", "nbytes", "owner", "reduce", "schedule", "steps"]


def owner(chunk: int, world: int) -> int:  # noqa: ARG001 - the signature of all algorithms
    """Return the rank that finishes a chunk: the rank with the chunk's number."""
    return chunk


def reduce(rank: int, world: int) -> Iterator[Step]:
    """Yield one rank's steps of the reduce-scatter, after which the rank owns the sum of chunk ``rank``."""
    for k in range(1, world):
        to, source = (rank + k) % world, (rank - k) % world
        yield Step(to, (to, to + 1), source, (rank, rank + 1), combine=True)


def broadcast(rank: int, world: int) -> Iterator[Step]:
    """Yield one rank's steps of the all-gather, in which the rank sends chunk ``rank`` to all other ranks."""
    for k in range(1, world):
        to, source = (rank + k) % world, (rank - k) % world
        yield Step(to, (rank, rank + 1), source, (source, source + 1), combine=False)


schedule = both_halves(reduce, broadcast)


def steps(world: int) -> int:
    """Return the number of messages that each rank sends, and receives, in sequence."""
    return 2 * (world - 1)
