"""Hierarchical all-reduce over nested groups of ranks, with an algorithm per level."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby, pairwise

from gradwire.collectives import butterfly, ring, star, tree
from gradwire.collectives import pairwise as pairwise_algorithm
from gradwire.collectives.matching import hops_after
from gradwire.collectives.step import NOTHING, Collective, Step
from gradwire.errors import SpecError

_SIZES = re.compile(r"\d{1,9}(x\d{1,9})*", re.ASCII)
_TWO_RINGS = ("ring", "ring")
_EXAMPLE = "'hierarchical:4,ring+star'"
ALGORITHMS: dict[str, Collective] = {
    "ring": ring,
    "pairwise": pairwise_algorithm,
    "star": star,
    "tree": tree,
    "butterfly": butterfly,
}
"""The algorithms available for a level."""


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
        A name in ``ALGORITHMS`` for every level; one more than sizes.

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


# The ranks are nodes. Every level combines neighbouring nodes into groups, and the groups are the nodes of
# the next level; the last group of a level may have fewer nodes. A node's sums are distributed over its
# ranks, chunk by chunk. The ranks of a group that own the same chunks run an instance of the level's
# algorithm on these chunks, and then own chunks of the result.
#
# All levels use the same fine chunks. The number of fine chunks is the product, over all levels, of the
# number of chunks of a full group. An instance in a smaller group cuts its part into fewer pieces. Each
# piece is one or more chunks of a full group, so that the boundaries of pieces are boundaries of chunks in
# every group.


@dataclass(frozen=True, slots=True)
class Level:
    """One level: its algorithm's name, and its group size in nodes; None joins all remaining nodes."""

    name: str
    size: int | None

    def joined(self, nodes: int) -> int:
        """Return the size of a full group, given the number of nodes."""
        return nodes if self.size is None else min(self.size, nodes)


@dataclass(frozen=True, slots=True)
class Instance:
    """An algorithm's instance: its ranks (``members``), and its chunks' borders in fine chunks (``cuts``)."""

    name: str
    members: tuple[int, ...]
    cuts: tuple[int, ...]

    def reduce(self, place: int) -> Iterator[Step]:
        """Yield the steps of the reduce half for the member at ``place``."""
        return map(self._in_the_whole, ALGORITHMS[self.name].reduce(place, len(self.members)))

    def broadcast(self, place: int) -> Iterator[Step]:
        """Yield the steps of the broadcast half for the member at ``place``."""
        return map(self._in_the_whole, ALGORITHMS[self.name].broadcast(place, len(self.members)))

    def _in_the_whole(self, step: Step) -> Step:
        return Step(
            None if step.send_to is None else self.members[step.send_to],
            self._chunks(*step.send),
            None if step.recv_from is None else self.members[step.recv_from],
            self._chunks(*step.recv),
            step.combine,
        )

    def _chunks(self, start: int, stop: int) -> tuple[int, int]:
        return (self.cuts[start], self.cuts[stop]) if start < stop else NOTHING


class LevelInstances:
    """All instances of all levels for ``world`` ranks.

    ``chunks`` is the number of fine chunks, ``owners`` has the rank that finishes each fine chunk, and
    ``levels`` has the instances of every level. All ranks run their instances in the order of ``levels``,
    which keeps schedules free of deadlock.
    """

    def __init__(self, levels: Sequence[Level], world: int) -> None:
        counts = list(_full_counts(levels, world))
        self.world = world
        self.chunks = math.prod(counts)
        self.levels: list[list[Instance]] = []
        nodes = [[rank] for rank in range(world)]  # each node's list of owners, one per unit of the bucket
        unit = self.chunks
        for level, count in zip(levels, counts, strict=True):
            unit //= count
            instances: list[Instance] = []
            size = level.joined(len(nodes))
            groups = [nodes[first : first + size] for first in range(0, len(nodes), size)]
            nodes = [_joined(level.name, group, count, unit, instances) for group in groups]
            self.levels.append(sorted(instances, key=lambda instance: instance.cuts[0]))
        (self.owners,) = nodes
        self._of_rank = [[list[tuple[Instance, int]]() for _ in levels] for _ in range(world)]
        for number, level_instances in enumerate(self.levels):
            for instance in level_instances:
                for place, rank in enumerate(instance.members):
                    self._of_rank[rank][number].append((instance, place))

    def reduce(self, rank: int) -> Iterator[Step]:
        """Yield one rank's steps of the reduce half, from the leaves up."""
        for level in self._of_rank[rank]:
            for instance, place in level:
                yield from instance.reduce(place)

    def broadcast(self, rank: int) -> Iterator[Step]:
        """Yield one rank's steps of the broadcast half, down to the leaves."""
        for level in reversed(self._of_rank[rank]):
            for instance, place in level:
                yield from instance.broadcast(place)

    def hops(self) -> int:
        """Return the length of the critical path in hops."""
        clocks = [0] * self.world
        for half, levels in (("reduce", self.levels), ("broadcast", self.levels[::-1])):
            for instance in chain.from_iterable(levels):
                begun = [clocks[rank] for rank in instance.members]
                first = min(begun)
                late = tuple(clock - first for clock in begun)
                for rank, hops in zip(instance.members, _hops(instance.name, half, late), strict=True):
                    clocks[rank] = first + hops
        return max(clocks)

    def sent(self) -> int:
        """Return the number of fine chunks that the busiest rank sends."""
        sent = [0] * self.world
        for instance in chain.from_iterable(self.levels):
            widths = tuple(stop - start for start, stop in pairwise(instance.cuts))
            counts = _sent(instance.name, len(instance.members), widths)
            for rank, count in zip(instance.members, counts, strict=True):
                sent[rank] += count
        return max(sent)


def _full_counts(levels: Iterable[Level], nodes: int) -> Iterator[int]:
    for level in levels:
        size = level.joined(nodes)
        yield ALGORITHMS[level.name].chunks(size)
        nodes = -(-nodes // size)


def _joined(name: str, group: list[list[int]], count: int, unit: int, instances: list[Instance]) -> list[int]:
    """Append a group's instances; return the owners of its units, ``count`` for each unit of its nodes."""
    owners: list[int] = []
    for members, equal in groupby(zip(*group, strict=True)):
        first, width = len(owners), count * sum(1 for _ in equal)
        pieces = ALGORITHMS[name].chunks(len(members))
        cuts = [first + width * i // pieces for i in range(pieces + 1)]
        if len(members) > 1:
            instances.append(Instance(name, members, tuple(cut * unit for cut in cuts)))
        for piece, (start, stop) in enumerate(pairwise(cuts)):
            owners += [members[ALGORITHMS[name].owner(piece, len(members))]] * (stop - start)
    return owners


@lru_cache(maxsize=1024)
def _hops(name: str, half: str, late: tuple[int, ...]) -> list[int]:
    algorithm, world = ALGORITHMS[name], len(late)
    yielded = algorithm.reduce if half == "reduce" else algorithm.broadcast
    return hops_after((yielded(place, world) for place in range(world)), late)


@lru_cache(maxsize=1024)
def _sent(name: str, world: int, widths: tuple[int, ...]) -> list[int]:
    schedules = (ALGORITHMS[name].schedule(place, world) for place in range(world))
    return [sum(sum(widths[slice(*step.send)]) for step in schedule) for schedule in schedules]
