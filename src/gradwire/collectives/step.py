"""A collective is data: each algorithm is a pure generator of steps, and these are the words it speaks.

A bucket is cut into ``chunks(world)`` chunks of nearly equal size. A schedule is what one rank does, in
order. Two halves make an all-reduce:

- in the **reduce** half every received chunk is combined (decoded and added) and every sent chunk is the
  sender's current partial sum, encoded anew;
- in the **broadcast** half the owner of a finished chunk encodes it once and adopts its own decoded value;
  everybody else stores what came and forwards the payload unchanged, so that all ranks end with identical
  bits.

An algorithm is a module with these names:

- ``chunks(world)``: into how many chunks the bucket is cut;
- ``reduce(rank, world)`` and ``broadcast(rank, world)``: the two halves, generators of ``Step``;
- ``schedule(rank, world)``: both, one after the other;
- ``steps(world)``: the length of the critical path in hops; ``nbytes(world, n)``: the bytes that the busiest
  rank sends for a bucket of ``n`` bytes. These two are the card; tests count them from the steps.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of a schedule: what this rank sends and receives, possibly both at once.

    ``send_to`` and ``recv_from`` are ranks or None. ``send`` and ``recv`` are half-open ranges of chunk
    numbers, ``(0, 0)`` where nothing goes that way. ``combine`` says whether what arrives is added to the own
    chunk (the reduce half) or replaces it (the broadcast half); what is sent in a combining step is encoded
    anew.
    """

    send_to: int | None
    send: tuple[int, int]
    recv_from: int | None
    recv: tuple[int, int]
    combine: bool
