"""Multi-level algorithms: the ranks and chunks of each instance, and the cost in hops and chunks.

The ranks are nodes. Every level combines neighbouring nodes into groups, and the groups are the nodes of the
next level; the last group of a level may have fewer nodes. A node's sums are distributed over its ranks,
chunk by chunk. The ranks of a group that own the same chunks run an instance of the level's algorithm on
these chunks, and then own chunks of the result.

All levels use the same fine chunks. The number of fine chunks is the product, over all levels, of the number
of chunks of a full group. An instance in a smaller group cuts its part into fewer pieces. Each piece is one
or more chunks of a full group, so that the boundaries of pieces are boundaries of chunks in every group.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from math import prod

from gradwire.collectives.matching import hops_after
from gradwire.collectives.step import Collective, Step
from gradwire.plugins import resolve


class Algorithms(Mapping[str, Collective]):
    """A mapping of names to algorithms, each loaded on first use.

    Parameters
    ----------
    places
        The module, or ``module:object``, of each name.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places
        self._loaded: dict[str, Collective] = {}

    def __getitem__(self, name: str) -> Collective:
        if name not in self._loaded:
            self._loaded[name] = resolve(self._places[name])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


MODULES = {name: f"gradwire.collectives.{name}" for name in ("ring", "pairwise", "star", "tree", "butterfly")}
"""The algorithms available for a level, and their modules."""
ALGORITHMS = Algorithms(MODULES)


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
        return (self.cuts[start], self.cuts[stop]) if start < stop else (0, 0)


class LevelInstances:
    """All instances of all levels for ``world`` ranks.

    ``chunks`` is the number of fine chunks, ``owners`` has the rank that finishes each fine chunk, and
    ``levels`` has the instances of every level. All ranks run their instances in the order of ``levels``,
    which keeps schedules free of deadlock.
    """

    def __init__(self, levels: Sequence[Level], world: int) -> None:
        counts = list(_full_counts(levels, world))
        self.world = world
        self.chunks = prod(counts)
        self.levels: list[list[Instance]] = []
        nodes = [[rank] for rank in range(world)]  # each node's list of owners, one per unit of the bucket
        unit = self.chunks
        for level, count in zip(levels, counts, strict=True):
            unit //= count
            instances: list[Instance] = []
            nodes = [
                _joined(level.name, group, count, unit, instances)
                for group in _groups(nodes, level.joined(len(nodes)))
            ]
            self.levels.append(sorted(instances, key=lambda instance: instance.cuts[0]))
        (self.owners,) = nodes
        self._of_rank = self._find_ranks()

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
            for instance in (instance for level in levels for instance in level):
                begun = [clocks[rank] for rank in instance.members]
                first = min(begun)
                late = tuple(clock - first for clock in begun)
                for rank, hops in zip(instance.members, _hops(instance.name, half, late), strict=True):
                    clocks[rank] = first + hops
        return max(clocks)

    def sent(self) -> int:
        """Return the number of fine chunks that the busiest rank sends."""
        sent = [0] * self.world
        for instance in (instance for level in self.levels for instance in level):
            widths = tuple(stop - start for start, stop in itertools.pairwise(instance.cuts))
            for rank, count in zip(
                instance.members, _sent(instance.name, len(instance.members), widths), strict=True
            ):
                sent[rank] += count
        return max(sent)

    def _find_ranks(self) -> list[list[list[tuple[Instance, int]]]]:
        found: list[list[list[tuple[Instance, int]]]] = [[[] for _ in self.levels] for _ in range(self.world)]
        for number, level in enumerate(self.levels):
            for instance in level:
                for place, rank in enumerate(instance.members):
                    found[rank][number].append((instance, place))
        return found


def _full_counts(levels: Iterable[Level], nodes: int) -> Iterator[int]:
    for level in levels:
        size = level.joined(nodes)
        yield ALGORITHMS[level.name].chunks(size)
        nodes = -(-nodes // size)


def _groups(nodes: list[list[int]], size: int) -> Iterator[list[list[int]]]:
    for first in range(0, len(nodes), size):
        yield nodes[first : first + size]


def _joined(name: str, group: list[list[int]], count: int, unit: int, instances: list[Instance]) -> list[int]:
    """Append a group's instances to ``instances``, and return the owners of the group's units.

    Each unit of the group's nodes is divided into ``count`` units of ``unit`` chunks each.
    """
    owners: list[int] = []
    for members, equal in groupby(zip(*group, strict=True)):
        first, width = len(owners), count * sum(1 for _ in equal)
        pieces = ALGORITHMS[name].chunks(len(members))
        cuts = [first + width * i // pieces for i in range(pieces + 1)]
        if len(members) > 1:
            instances.append(Instance(name, members, tuple(cut * unit for cut in cuts)))
        for piece, (start, stop) in enumerate(itertools.pairwise(cuts)):
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
