"""Star all-reduce: every rank sends its bucket to rank 0, which adds the buckets and sends the sum back.

The star is the organization of parameter servers, or of workers and an aggregator. Training with a server
uses the two halves of the star with different codecs. The star is the baseline for the ring.

Card, for ``p`` ranks and a bucket of ``n`` bytes:

- steps: ``2 (p - 1)``, all of them at the root
- bytes sent by the root: ``(p - 1) n``; received: the same; every other rank sends and receives ``n``
- extra memory: none beyond the frames in flight; the root keeps the encoded sum until the last rank has it
- exactness: summed in the order of the ranks, ``((x0 + x1) + x2) + ...``, each partial sum rounded to
  float32; a codec encodes ``p - 1`` terms and the sum, so the error is at most ``p`` times its bound
- source: Li and others, Scaling distributed machine learning with the parameter server, OSDI 2014; the
  worker-aggregator baseline of INCEPTIONN, MICRO 2018
"""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.collectives.step import NOTHING, ROOT, WHOLE, Step, both_halves

ROTATES = False


def chunks(world: int) -> int:  # noqa: ARG001 - the signature of all algorithms
    """Return the number of chunks of a bucket: 1."""
    return 1


def owner(chunk: int, world: int) -> int:  # noqa: ARG001
    """Return the rank that finishes the bucket: the root."""
    return ROOT


def reduce(rank: int, world: int) -> Iterator[Step]:
    """Yield the steps towards the root, which receives from the ranks in order."""
    if rank != ROOT:
        yield Step(ROOT, WHOLE, None, NOTHING, combine=True)
        return
    for worker in range(1, world):
        yield Step(None, NOTHING, worker, WHOLE, combine=True)


def broadcast(rank: int, world: int) -> Iterator[Step]:
    """Yield the steps from the root, which sends to the ranks in order."""
    if rank != ROOT:
        yield Step(None, NOTHING, ROOT, WHOLE, combine=False)
        return
    for worker in range(1, world):
        yield Step(worker, WHOLE, None, NOTHING, combine=False)


schedule = both_halves(reduce, broadcast)


def steps(world: int) -> int:
    """Return the length of the critical path in hops: the root serves one rank after the other."""
    return 2 * (world - 1)


def nbytes(world: int, n: int) -> float:
    """Return the bytes that the busiest rank, the root, sends for a bucket of ``n`` bytes."""
    return float((world - 1) * n)
