"""An algorithm of another package, a ring in the other direction; and a command."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from gradwire.collectives import Step, ring

ROTATES = False

chunks, steps, nbytes = ring.chunks, ring.steps, ring.nbytes


def owner(chunk: int, world: int) -> int:
    """Return the rank that finishes a chunk."""
    return -ring.owner(chunk, world) % world


def reduce(rank: int, world: int) -> Iterator[Step]:
    """Yield the reduce-scatter of the rank in the mirror."""
    return _mirrored(ring.reduce(-rank % world, world), world)


def broadcast(rank: int, world: int) -> Iterator[Step]:
    """Yield the all-gather of the rank in the mirror."""
    return _mirrored(ring.broadcast(-rank % world, world), world)


def schedule(rank: int, world: int) -> Iterator[Step]:
    """Yield both halves."""
    yield from reduce(rank, world)
    yield from broadcast(rank, world)


def _mirrored(steps: Iterator[Step], world: int) -> Iterator[Step]:
    for step in steps:
        to, source = step.send_to, step.recv_from
        yield Step(
            None if to is None else -to % world,
            step.send,
            None if source is None else -source % world,
            step.recv,
            step.combine,
        )


def hello(arguments: Sequence[str]) -> None:
    """Show the words of the command line."""
    sys.stdout.write(f"hello {' '.join(arguments)}\n")


COMMANDS = {"hello": ("say hello", "gradwire_example_ring:hello")}
