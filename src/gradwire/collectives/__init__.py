"""Who sends what to whom: algorithms as data, one module each; ``step`` says what such a module holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from gradwire.collectives import ring, star
from gradwire.collectives.step import Step
from gradwire.errors import SpecError

__all__ = ["TABLE", "Collective", "Step", "get"]


class Collective(Protocol):
    """The names that the module of an algorithm has; ``gradwire.collectives.step`` says what they mean."""

    def chunks(self, world: int) -> int:
        """Return into how many chunks a bucket is cut."""

    def reduce(self, rank: int, world: int) -> Iterator[Step]:
        """Yield the reduce half."""

    def broadcast(self, rank: int, world: int) -> Iterator[Step]:
        """Yield the broadcast half."""

    def schedule(self, rank: int, world: int) -> Iterator[Step]:
        """Yield both halves."""

    def steps(self, world: int) -> int:
        """Return the length of the critical path in hops."""

    def nbytes(self, world: int, n: int) -> float:
        """Return the bytes that the busiest rank sends for a bucket of ``n`` bytes."""


TABLE: dict[str, Collective] = {"ring": ring, "star": star}


def get(name: str) -> Collective:
    """Return the algorithm called ``name``. Raises ``SpecError``."""
    if not isinstance(name, str) or name not in TABLE:
        raise SpecError(f"no algorithm is called {name!r}; choose one of {', '.join(sorted(TABLE))}")
    return TABLE[name]
