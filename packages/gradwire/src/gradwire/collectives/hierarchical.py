"""Hierarchical all-reduce over nested groups of ranks, with an algorithm per level."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from gradwire.collectives.levels import ALGORITHMS, Level, LevelInstances
from gradwire.collectives.step import Step
from gradwire.errors import SpecError

_SIZES = re.compile(r"\d{1,9}(x\d{1,9})*", re.ASCII)
_TWO_RINGS = ("ring", "ring")
_EXAMPLE = "'hierarchical:4,ring+star'"


@dataclass(frozen=True)
class Hierarchical:
    """Hierarchical all-reduce: reduce in groups, then across groups, and broadcast back down.

    Neighbouring ranks form a group. After the reduce half of the group's algorithm, every chunk has an owner
    in the group. The owners of the same chunk in all groups run the algorithm of the next level on that
    chunk, and so on. The broadcast halves follow, from the last level down. With rings in the groups, every
    rank owns a chunk, so every link is busy on every level. With stars or trees, only the first rank of a
    group continues, with the whole bucket.

    A spec lists the group sizes, from the leaves up, and the levels' algorithms. There is one more algorithm
    than sizes, because the last level joins all remaining groups: ``hierarchical:4,ring+star``,
    ``hierarchical:4x2,star+star+star``. Without algorithms, all levels are rings. Without sizes, there are
    two levels with groups of about the square root of the world size: the smallest divisor of the world size
    from the root up to twice the root, or, without such a divisor, the root rounded up. The last group of a
    level may be smaller.

    Card, for ``p`` ranks in equal groups and a bucket of ``n`` bytes:

    - steps: the sum of the levels' steps; for rings ``2 (g - 1) + 2 (p / g - 1)`` in groups of ``g``
    - bytes sent by the busiest rank: the sum over the levels; if a level cuts its part into ``c`` chunks, the
      level above exchanges ``1 / c`` of it; for rings ``2 (p - 1) / p n`` on any number of levels. A smaller
      last group increases both, which the methods ``steps`` and ``nbytes`` include
    - extra memory: a rank keeps the encoded sums from the level above until its group has them; for rings
      below rings, ``n / g`` encoded bytes
    - exactness: a group's sums are added in the order of its algorithm, and the groups' sums in the order of
      the next level's, each partial sum rounded to float32; a codec encodes ``p - 1`` partial sums of a chunk
      and the sum, so the error is at most ``p`` times its bound
    - source: figure 1 of INCEPTIONN, MICRO 2018: the worker-aggregator tree (a), rings in its leaves (b),
      rings on every level (c); Cho and others, BlueConnect, SysML 2019

    Parameters
    ----------
    sizes
        The number of nodes in a group, from the leaves up; None for groups of about the square root of the
        world size.
    algorithms
        A name in ``levels.ALGORITHMS`` for every level; one more than sizes.

    Raises
    ------
    SpecError
        If the levels are invalid.
    """

    sizes: tuple[int, ...] | None = None
    algorithms: tuple[str, ...] = _TWO_RINGS

    ROTATES = False

    def __post_init__(self) -> None:
        for name in self.algorithms:
            if name not in ALGORITHMS:
                known = ", ".join(sorted(ALGORITHMS))
                raise SpecError(
                    f"hierarchical: expected an algorithm for each level, got {name!r}; choose one of {known}"
                )
        if self.sizes is None:
            if self.algorithms != _TWO_RINGS:
                raise SpecError(
                    "hierarchical: expected group sizes before algorithms, got none; for example, write "
                    f"{_EXAMPLE}"
                )
            return
        if not self.sizes or any(size < 1 for size in self.sizes):
            raise _wrong_sizes("x".join(map(str, self.sizes)))
        if len(self.algorithms) != len(self.sizes) + 1:
            raise SpecError(
                f"hierarchical: expected one more algorithm than group sizes, got {len(self.algorithms)} "
                f"for {len(self.sizes)}; for example, write {_EXAMPLE}"
            )

    @classmethod
    def parse(cls, spec: str) -> Hierarchical:
        """Return the algorithm of a spec. Raises ``SpecError``."""
        _, colon, levels = spec.partition(":")
        if not colon:
            return cls()
        text, comma, names = levels.partition(",")
        if _SIZES.fullmatch(text) is None:
            raise _wrong_sizes(text)
        sizes = tuple(map(int, text.split("x")))
        return cls(sizes, tuple(names.split("+")) if comma else ("ring",) * (len(sizes) + 1))

    def __str__(self) -> str:
        if self.sizes is None:
            return "hierarchical"
        spec = f"hierarchical:{'x'.join(map(str, self.sizes))}"
        return spec if set(self.algorithms) == {"ring"} else f"{spec},{'+'.join(self.algorithms)}"

    def chunks(self, world: int) -> int:
        """Return the number of chunks of a bucket: the product over the levels."""
        return layout(self, world).chunks

    def owner(self, chunk: int, world: int) -> int:
        """Return the rank that finishes a chunk: its owner on the last level."""
        return layout(self, world).owners[chunk]

    def reduce(self, rank: int, world: int) -> Iterator[Step]:
        """Yield the reduce halves of the levels, from the leaves up."""
        return layout(self, world).reduce(rank)

    def broadcast(self, rank: int, world: int) -> Iterator[Step]:
        """Yield the broadcast halves of the levels, down to the leaves."""
        return layout(self, world).broadcast(rank)

    def schedule(self, rank: int, world: int) -> Iterator[Step]:
        """Yield one rank's whole schedule: the reduce half, then the broadcast half."""
        yield from self.reduce(rank, world)
        yield from self.broadcast(rank, world)

    def steps(self, world: int) -> int:
        """Return the length of the critical path in hops."""
        return layout(self, world).hops()

    def nbytes(self, world: int, n: int) -> float:
        """Return the bytes that the busiest rank sends for a bucket of ``n`` bytes."""
        instances = layout(self, world)
        return instances.sent() * n / instances.chunks


TWO_LEVELS = Hierarchical()
"""The algorithm of the spec ``hierarchical``: two levels of rings."""


@lru_cache(maxsize=64)
def layout(hierarchical: Hierarchical, world: int) -> LevelInstances:
    """Return the instances of all levels for ``world`` ranks, from a cache."""
    sizes = (_near_root(world),) if hierarchical.sizes is None else hierarchical.sizes
    levels = zip(hierarchical.algorithms, (*sizes, None), strict=True)
    return LevelInstances([Level(name, size) for name, size in levels], world)


def _near_root(world: int) -> int:
    root = math.isqrt(world - 1) + 1
    return next((size for size in range(root, 2 * root + 1) if world % size == 0), root)


def _wrong_sizes(got: str) -> SpecError:
    return SpecError(
        f"hierarchical: expected group sizes of at least 1, such as '4' or '4x2', got {got!r}; "
        f"for example, write {_EXAMPLE}"
    )
