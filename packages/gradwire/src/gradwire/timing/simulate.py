"""Simulate an all-reduce on a heterogeneous network, with up to thousands of ranks.

A message starts when both its ranks have reached the step. A step ends when its send, its receive, and its
addition have ended. A message's rate is the lowest of three rates: its source's rate, its target's rate, and
its share of the uplinks on its path. The messages of one ``Round`` share an uplink max-min fairly, as if all
of them were concurrent. If a message ends early, the other messages don't get its share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise, zip_longest

import numpy as np
from numpy.typing import NDArray

from gradwire.collectives import Collective, Hierarchical, Step
from gradwire.collectives.hierarchical import ALGORITHMS, Instance, layout
from gradwire.collectives.matching import messages

# The messages of an all-reduce are arrays, so that thousands of ranks can be simulated. A ``Round`` is a set
# of messages that don't wait for each other. If all ranks' schedules are rotations of rank 0's schedule, only
# rank 0's schedule is read. A hierarchical algorithm is composed of the algorithms of its levels.

Ints = NDArray[np.intp]
Index = Ints | slice
ALL = slice(None)

_Schedule = Callable[[int, int], Iterator[Step]]


@dataclass(frozen=True, eq=False, slots=True)
class Pairs:
    """Distinct pairs of ranks with concurrent messages, from ``source[i]`` to ``target[i]``.

    ``by_receiver`` is the order of the messages that belongs to ``receivers``, the targets. Slices are faster
    than indices, if all ranks have a message. ``Round`` objects with the same pairs share one ``Pairs``
    object, so that derived values are computed once.
    """

    source: Ints
    target: Ints
    senders: Index
    receivers: Index
    by_receiver: Index

    @classmethod
    def some(cls, source: Ints, target: Ints) -> Pairs:
        """Return the pairs of these sources and targets, which need not include all ranks."""
        return cls(source, target, senders=source, receivers=target, by_receiver=ALL)

    @classmethod
    def shifted(cls, world: int, by: int) -> Pairs:
        """Return a pair for every rank: the rank, and the rank plus ``by`` modulo ``world``."""
        ranks = np.arange(world, dtype=np.intp)
        target, sender = (ranks + by) % world, (ranks - by) % world
        return cls(ranks, target, senders=ALL, receivers=ALL, by_receiver=sender)


@dataclass(frozen=True, eq=False, slots=True)
class Round:
    """A set of concurrent messages; message ``i`` contains the chunks from ``first[i]`` to ``last[i] - 1``.

    The target of message ``i`` adds its chunks if ``combine[i]``, and otherwise replaces them. ``enter``
    lists the ranks whose step begins with a message of this set; the other ranks' steps began earlier.
    """

    pairs: Pairs
    first: Ints
    last: Ints
    combine: NDArray[np.bool_]
    enter: Index


def rounds(collective: Collective, world: int) -> Iterator[Round]:
    """Yield the sets of concurrent messages of an all-reduce, each after the sets that it depends on.

    Raises ``SpecError`` if the schedules of the ranks don't match.
    """
    if not isinstance(collective, Hierarchical):
        yield from _flat(collective, collective.schedule, world)
        return
    levels = layout(collective, world).levels
    for level in levels:
        yield from _level(level, lambda algorithm: algorithm.reduce)
    for level in reversed(levels):
        yield from _level(level, lambda algorithm: algorithm.broadcast)


def _flat(collective: Collective, schedule: _Schedule, world: int) -> Iterator[Round]:
    if collective.ROTATES:
        return _rotated(schedule(0, world), collective.chunks(world), world)
    return _assembled(schedule, world)


def _rotated(steps: Iterable[Step], chunks: int, world: int) -> Iterator[Round]:
    around = np.arange(world + chunks, dtype=np.intp) % chunks
    known = dict[int, Pairs]()
    for step in steps:
        shift = step.send_to or 0
        if shift not in known:
            known[shift] = Pairs.shifted(world, shift)
        first = around[step.send[0] : step.send[0] + world]
        yield Round(known[shift], first, first + 1, np.full(world, step.combine), ALL)


def _assembled(schedule: _Schedule, world: int) -> Iterator[Round]:
    found = messages([schedule(rank, world) for rank in range(world)])
    columns = np.array(list(found), dtype=np.intp).reshape(-1, 8)
    columns = columns[np.argsort(columns[:, -1], kind="stable")]
    source, target, send_step, recv_step, first, last, combine, number = columns.T
    enters = _first_of_step(np.stack([source, target], 1), np.stack([send_step, recv_step], 1))
    borders = [*np.flatnonzero(np.diff(number, prepend=-1)), len(number)]
    for start, stop in pairwise(borders):
        at = slice(start, stop)
        enter = np.concatenate([source[at][enters[at, 0]], target[at][enters[at, 1]]])
        yield Round(
            Pairs.some(source[at], target[at]), first[at], last[at], combine[at].astype(np.bool_), enter
        )


def _first_of_step(rank: Ints, step: Ints) -> NDArray[np.bool_]:
    """Return, for both ranks of every message, whether the message is the first in the rank's step."""
    keys = (rank * (step.max(initial=0) + 1) + step).ravel()
    first = np.zeros(keys.size, dtype=np.bool_)
    first[np.unique(keys, return_index=True)[1]] = True
    return first.reshape(rank.shape)


def _level(level: list[Instance], half: Callable[[Collective], _Schedule]) -> Iterator[Round]:
    """Yield the messages of one level of a hierarchy; instances without a common rank run concurrently."""
    for apart in _apart(level):
        alike = groupby(sorted(apart, key=_kind), key=_kind)
        together = [_alike(list(instances), half) for _, instances in alike]
        known = dict[tuple[Pairs, ...], Pairs]()
        for several in zip_longest(*together):
            yield _merged([each for each in several if each is not None], known)


def _kind(instance: Instance) -> tuple[str, int]:
    return instance.name, len(instance.members)


def _apart(level: list[Instance]) -> list[list[Instance]]:
    """Divide instances into sets without a common rank, in an order that preserves every rank's order."""
    sets: list[list[Instance]] = []
    begun = dict[int, int]()
    for instance in level:
        number = max(begun.get(rank, 0) for rank in instance.members)
        if number == len(sets):
            sets.append([])
        sets[number].append(instance)
        begun.update(dict.fromkeys(instance.members, number + 1))
    return sets


def _alike(instances: list[Instance], half: Callable[[Collective], _Schedule]) -> Iterator[Round]:
    name, size = _kind(instances[0])
    members = np.array([instance.members for instance in instances], dtype=np.intp)
    cuts = np.array([instance.cuts for instance in instances], dtype=np.intp)
    known = dict[Pairs, Pairs]()
    for one in _flat(ALGORITHMS[name], half(ALGORITHMS[name]), size):
        if one.pairs not in known:
            source, target = members[:, one.pairs.source], members[:, one.pairs.target]
            known[one.pairs] = Pairs.some(source.ravel(), target.ravel())
        yield Round(
            known[one.pairs],
            cuts[:, one.first].ravel(),
            cuts[:, one.last].ravel(),
            np.tile(one.combine, len(instances)),
            members[:, one.enter].ravel(),
        )


def _merged(several: list[Round], known: dict[tuple[Pairs, ...], Pairs]) -> Round:
    if len(several) == 1:
        return several[0]
    pairs = tuple(each.pairs for each in several)
    if pairs not in known:
        source = np.concatenate([each.source for each in pairs])
        known[pairs] = Pairs.some(source, np.concatenate([each.target for each in pairs]))
    return Round(
        known[pairs],
        np.concatenate([each.first for each in several]),
        np.concatenate([each.last for each in several]),
        np.concatenate([each.combine for each in several]),
        np.concatenate([each.enter for each in several]),
    )


Rates = NDArray[np.float64]
Seconds = NDArray[np.float64]

_SAME = 1 + 1e-12
"""The factor within which shares count as equal despite rounding, and are settled together."""


@dataclass(frozen=True, eq=False, slots=True)
class Wires:
    """The rates and latencies of a network, as arrays.

    Ranks and uplinks are full duplex. ``group`` is the group of each rank, from 0 up. Every message takes
    ``latency_s`` in addition to the time of its bytes, and another ``crossing_s`` between two groups.
    """

    send_nbytes_per_s: Rates
    recv_nbytes_per_s: Rates
    latency_s: float
    group: Ints
    uplink_nbytes_per_s: Rates
    crossing_s: float = 0.0

    def latencies_s(self, pairs: Pairs) -> Seconds:
        """Return the latency of each message in seconds."""
        crossing = self.group[pairs.source] != self.group[pairs.target]
        return np.where(crossing, self.latency_s + self.crossing_s, self.latency_s)

    def rates(self, pairs: Pairs) -> Rates:
        """Return the max-min fair rates of concurrent messages in bytes per second.

        No rate can be raised without lowering another rate that is no higher (Bertsekas and Gallager, Data
        Networks, section 6.5.2).
        """
        rates: Rates = np.minimum(self.send_nbytes_per_s[pairs.source], self.recv_nbytes_per_s[pairs.target])
        source, target = self.group[pairs.source], self.group[pairs.target]
        crossing = np.flatnonzero(source != target)
        if len(crossing):
            uplink = self.uplink_nbytes_per_s
            rates[crossing] = _share(rates[crossing], source[crossing], target[crossing], uplink)
        return rates


def _share(most: Rates, source: NDArray[np.intp], target: NDArray[np.intp], uplink: Rates) -> Rates:
    """Return max-min fair rates of at most ``most``, from the rates of the groups' uplinks.

    All rates rise at the same pace, and each rate stops at the first limit: of a rank, or of an uplink.
    """
    rates = np.zeros_like(most)
    out, into = uplink.copy(), uplink.copy()
    open_ = np.arange(len(most))
    while len(open_):
        up, down = source[open_], target[open_]
        out_share = out / np.maximum(np.bincount(up, minlength=len(out)), 1)
        into_share = into / np.maximum(np.bincount(down, minlength=len(into)), 1)
        limit = np.minimum(most[open_], np.minimum(out_share[up], into_share[down]))
        settled = limit <= limit.min() * _SAME
        done, rate = open_[settled], limit[settled]
        rates[done] = rate
        out -= np.bincount(up[settled], rate, minlength=len(out))
        into -= np.bincount(down[settled], rate, minlength=len(into))
        open_ = open_[~settled]
    return rates


@dataclass(frozen=True, eq=False, slots=True)
class Simulation:
    """The times at which the ranks end their last steps, and their idle times."""

    finish_s: Seconds  # the end of each rank's last step
    idle_s: Seconds  # the time until then in which the rank didn't send, receive, or add

    @property
    def total_s(self) -> float:
        """The end of the last rank's last step."""
        return float(self.finish_s.max())


class _Clocks:
    """The clocks of all ranks: begin and latest end of each rank's step, and the rank's busy time so far."""

    def __init__(self, start: Seconds) -> None:
        self.begin, self.end, self.busy = start.copy(), start.copy(), np.zeros_like(start)
        self.busy_from, self.busy_to = start.copy(), start.copy()

    def enter(self, ranks: Index) -> None:
        self.begin[ranks] = self.busy_from[ranks] = self.busy_to[ranks] = self.end[ranks]

    def occupy(self, ranks: Index, start: Seconds, stop: Seconds) -> None:
        """Add a send or a receive to the current step of each of these distinct ranks.

        A step has at most one send and one receive; overlapping time is counted once.
        """
        both = np.minimum(stop, self.busy_to[ranks]) - np.maximum(start, self.busy_from[ranks])
        self.busy[ranks] += stop - start - np.maximum(both, 0.0)
        self.busy_from[ranks], self.busy_to[ranks] = start, stop
        self.end[ranks] = np.maximum(self.end[ranks], stop)


def simulate(
    collective: Collective,
    wires: Wires,
    nbytes: float,
    *,
    ratio: float = 1.0,
    reduce_s_per_nbyte: Seconds | float = 0.0,
    start_s: Seconds | float = 0.0,
) -> Simulation:
    """Simulate an all-reduce of ``nbytes`` bytes of float32 per rank over these wires.

    Chunks are assumed to be equal. Raises ``SpecError`` if the schedules of the ranks don't match.

    Parameters
    ----------
    ratio
        The codec's compression ratio, which divides the bytes sent, but not the bytes added.
    reduce_s_per_nbyte
        Seconds to add a received byte of float32.
    start_s
        The times at which the ranks reach the all-reduce.
    """
    world = len(wires.group)
    chunk_nbytes = nbytes / collective.chunks(world)
    reduce_s_per_chunk = np.broadcast_to(chunk_nbytes * np.asarray(reduce_s_per_nbyte), world)
    start = np.array(np.broadcast_to(np.asarray(start_s, dtype=np.float64), world))
    clocks = _Clocks(start)
    pairs = None
    for round_ in rounds(collective, world):
        if round_.pairs is not pairs:
            pairs = round_.pairs
            latency_s, move_s_per_chunk = wires.latencies_s(pairs), chunk_nbytes / ratio / wires.rates(pairs)
        _run(round_, clocks, latency_s + (round_.last - round_.first) * move_s_per_chunk, reduce_s_per_chunk)
    return Simulation(clocks.end, np.maximum(clocks.end - start - clocks.busy, 0.0))


def _run(round_: Round, clocks: _Clocks, move_s: Seconds, reduce_s_per_chunk: Seconds) -> None:
    pairs = round_.pairs
    clocks.enter(round_.enter)
    start = np.maximum(clocks.begin[pairs.senders], clocks.begin[pairs.target])
    arrived = start + move_s
    clocks.occupy(pairs.senders, start, arrived)
    added = arrived + round_.combine * (round_.last - round_.first) * reduce_s_per_chunk[pairs.target]
    clocks.occupy(pairs.receivers, start[pairs.by_receiver], added[pairs.by_receiver])
