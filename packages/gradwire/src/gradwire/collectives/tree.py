"""Tree all-reduce: a reduction up a binomial tree to rank 0, and a broadcast down the same tree.

In step ``k`` of the reduce half, every rank ``r`` whose lowest set bit is ``2^k`` sends its partial sum of
the whole bucket to rank ``r - 2^k``, which adds the partial sum to its own. Rank ``r`` is then finished. The
broadcast half has the same steps in reverse order and direction, largest subtrees first.

Card, for ``p`` ranks and a bucket of ``n`` bytes:

- steps: ``2 ceil(lg p)``
- bytes sent by the busiest rank, the root: ``ceil(lg p) n``; received: the same
- extra memory: an inner rank keeps the encoded sum until its last child has it
- exactness: rank ``r`` adds the sums of the ranks ``r + 1``, ``r + 2 .. r + 3``, ``r + 4 .. r + 7`` and so
  on to its own values, each partial sum rounded to float32; a codec encodes ``p - 1`` partial sums and the
  sum, so the error is at most ``p`` times its bound
- source: ``2 lg(p) n / BW + 2 lg(p) latency`` of the measurement study of distributed training; Thakur,
  Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, IJHPCA 19 (2005)
"""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.collectives.star import ROTATES, chunks, owner
from gradwire.collectives.step import NOTHING, ROOT, WHOLE, Step, both_halves

__all__ = ["ROTATES", "broadcast", "chunks", "nbytes", "owner", "reduce", "schedule", "steps"]


def reduce(rank: int, world: int) -> Iterator[Step]:
    """Yield receives from the children, from the smallest subtree to the largest, then the send up."""
    for child in _children(rank, world):
        yield Step(None, NOTHING, child, WHOLE, combine=True)
    if rank != ROOT:
        yield Step(_parent(rank), WHOLE, None, NOTHING, combine=True)


def broadcast(rank: int, world: int) -> Iterator[Step]:
    """Yield the receive from the parent, then sends to the children, from the largest subtree down."""
    if rank != ROOT:
        yield Step(None, NOTHING, _parent(rank), WHOLE, combine=False)
    for child in reversed(_children(rank, world)):
        yield Step(child, WHOLE, None, NOTHING, combine=False)


schedule = both_halves(reduce, broadcast)


def steps(world: int) -> int:
    """Return the length of the critical path in hops."""
    return 2 * _height(world)


def nbytes(world: int, n: int) -> float:
    """Return the bytes that the busiest rank, the root, sends for a bucket of ``n`` bytes."""
    return float(_height(world) * n)


def _height(world: int) -> int:
    return (world - 1).bit_length()


def _parent(rank: int) -> int:
    return rank & (rank - 1)


def _children(rank: int, world: int) -> list[int]:
    below = _height(world) if rank == ROOT else (rank & -rank).bit_length() - 1
    return [rank + (1 << k) for k in range(below) if rank + (1 << k) < world]
