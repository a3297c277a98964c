"""Butterfly all-reduce: recursive halving to scatter the sums, recursive doubling to gather them.

Let ``m`` be the largest power of two up to ``p``. The bucket is cut into ``m`` chunks. In the reduce half,
each rank exchanges half of its remaining chunks with the rank whose number differs in one bit, starting with
the highest bit, and keeps the half that its own bit selects. After ``lg m`` steps, rank ``r`` owns the sum of
chunk ``r``. In the broadcast half, the same pairs of ranks exchange all finished chunks, starting with the
lowest bit.

If ``p`` isn't a power of two, every rank ``r`` from ``m`` up first sends its bucket to its partner ``r - m``,
which adds this bucket to its own bucket and returns the sum at the end.

Card, for ``p`` ranks and a bucket of ``n`` bytes:

- steps: ``2 lg m``, and 2 more if ``p`` is above ``m``
- bytes sent by every rank below ``m``: ``2 (m - 1) / m n``; by a partner of a rank from ``m`` up: ``n``
  more; by a rank from ``m`` up: ``n``; received: the same
- extra memory: a rank keeps all encoded sums that it must forward, up to half of the encoded bucket, and a
  partner of a rank from ``m`` up all of it
- exactness: chunk ``c`` is summed along a tree of ``lg m`` levels, each partial sum rounded to float32; a
  codec encodes ``p - 1`` partial sums and the sum, so the error is at most ``p`` times its bound
- source: ``2 (p - 1) / p n / BW + 2 lg(p) latency`` of the measurement study of distributed training;
  Rabenseifner, Optimization of collective reduction operations, ICCS 2004; Thakur, Rabenseifner and Gropp,
  Optimization of collective communication operations in MPICH, IJHPCA 19 (2005)
"""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.collectives.step import NOTHING, Step, both_halves

ROTATES = False


def chunks(world: int) -> int:
    """Return the number of chunks of a bucket: the largest power of two up to the number of ranks."""
    return 1 << (world.bit_length() - 1)


def owner(chunk: int, world: int) -> int:  # noqa: ARG001 - the signature of all algorithms
    """Return the rank that finishes a chunk: the rank with the chunk's number."""
    return chunk


def reduce(rank: int, world: int) -> Iterator[Step]:
    """Yield the folding step and recursive halving, after which the rank owns the sum of chunk ``rank``."""
    core = chunks(world)
    if rank >= core:
        yield Step(rank - core, (0, core), None, NOTHING, combine=True)
        return
    if rank + core < world:
        yield Step(None, NOTHING, rank + core, (0, core), combine=True)
    distance = core // 2
    while distance:
        other = rank ^ distance
        yield Step(other, _block(other, distance), other, _block(rank, distance), combine=True)
        distance //= 2


def broadcast(rank: int, world: int) -> Iterator[Step]:
    """Yield the recursive doubling, which starts with chunk ``rank``, and the unfolding step."""
    core = chunks(world)
    if rank >= core:
        yield Step(None, NOTHING, rank - core, (0, core), combine=False)
        return
    distance = 1
    while distance < core:
        other = rank ^ distance
        yield Step(other, _block(rank, distance), other, _block(other, distance), combine=False)
        distance *= 2
    if rank + core < world:
        yield Step(rank + core, (0, core), None, NOTHING, combine=False)


schedule = both_halves(reduce, broadcast)


def steps(world: int) -> int:
    """Return the length of the critical path in hops."""
    core = chunks(world)
    return 2 * (core.bit_length() - 1) + 2 * (world > core)


def nbytes(world: int, n: int) -> float:
    """Return the bytes that the busiest rank sends for a bucket of ``n`` bytes."""
    core = chunks(world)
    return 2 * (core - 1) * n / core + n * (world > core)


def _block(rank: int, size: int) -> tuple[int, int]:
    """Return the aligned block of ``size`` chunks that contains chunk ``rank``."""
    first = rank // size * size
    return first, first + size
