"""Short messages between ranks, the hosts of a job's ranks, and groups of links to measure concurrently.

Two pairs with a rank on the same host share that host's uplink. If both pairs were measured at the same time,
each pair would reach only part of its rate.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from gradwire.errors import FrameError, LinkError
from gradwire.links.base import Link, Receiving
from gradwire.machine import cores, is_inside, machine_id, processor
from gradwire.wire import PARTING_NBYTES, OutOfStepError, check_step, frame_memory, frame_of

Pair = tuple[int, int]
_NAME_NBYTES = 16
_NETWORK = "/proc/self/ns/net"


@dataclass(frozen=True)
class HostMap:
    """The host, the machine, and the processor of each rank. All ranks have an equal map.

    In a testbed, all hosts share one machine. Elsewhere, each host is a separate machine.
    """

    hosts: tuple[bytes, ...]
    machines: tuple[bytes, ...]
    processors: tuple[bytes, ...]

    @property
    def is_shared(self) -> bool:
        """Whether some ranks, but not all ranks, share a host."""
        return len({*self.hosts}) not in (1, len(self.hosts))

    def ranks_per_machine(self, rank: int) -> int:
        """Return the number of ranks on the machine of ``rank``."""
        return self.machines.count(self.machines[rank])

    def firsts(self) -> tuple[int, ...]:
        """Return the first rank on each kind of host. A kind is a processor and a number of ranks."""
        kinds = [
            (processor, self.hosts.count(host))
            for processor, host in zip(self.processors, self.hosts, strict=True)
        ]
        return tuple(kinds.index(each) for each in dict.fromkeys(kinds))


def map_hosts(link: Link) -> HostMap:
    """Return the hosts of all ranks. All ranks call this together. Raises ``LinkError``."""
    machine = machine_id()
    own = machine + (os.readlink(_NETWORK) if is_inside() else ""), machine, f"{processor()}/{cores()}"
    names = from_all(link, b"".join(map(_digest, own)))
    places = range(0, len(own) * _NAME_NBYTES, _NAME_NBYTES)
    return HostMap(*(tuple(each[at : at + _NAME_NBYTES] for each in names) for at in places))


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:_NAME_NBYTES]


def from_all(link: Link, message: bytes, timeout_s: float | None = None) -> list[bytes]:
    """Send ``message`` to all other ranks, and return all ranks' messages, which have equal lengths.

    ``timeout_s`` is the timeout of each wait; by default, the link's timeout. Raises ``LinkError``.
    """
    others = [rank for rank in range(link.world) if rank != link.rank]
    receivings = {rank: link.irecv(rank, memory_for(len(message))) for rank in others}
    frame = frame_of(message)
    for sending in [link.isend(rank, frame) for rank in others]:
        sending.wait(timeout_s)
    heard = {rank: read(link, rank, each, len(message), timeout_s) for rank, each in receivings.items()}
    return [heard.get(rank, message) for rank in range(link.world)]


def memory_for(nbytes: int) -> torch.Tensor:
    """Return memory for a message of ``nbytes`` bytes, or for the last frame of a peer that closes a link."""
    return frame_memory(max(nbytes, PARTING_NBYTES))


def read(link: Link, source: int, receiving: Receiving, nbytes: int, timeout_s: float | None = None) -> bytes:
    """Return the ``nbytes`` bytes of a message from ``source``, received into memory from ``memory_for``.

    Raises ``LinkError`` if the link fails, if ``source`` closes its link, or if the message has another
    length.
    """
    frame, what = receiving.wait(timeout_s), f"rank {link.rank} receiving from {link.name_of(source)}"
    try:
        check_step(frame, None)
    except OutOfStepError as error:
        steps = "" if error.has_left else f" ({error})"
        raise LinkError(
            f"{what}: {link.name_of(source)} has closed its link{steps}; see that rank's error"
        ) from error
    except FrameError:
        pass  # a message without a header
    message: bytes = frame.numpy().tobytes()
    # A transport that doesn't report sizes returns the whole memory.
    if len(message) not in (nbytes, max(nbytes, PARTING_NBYTES)):
        raise LinkError(
            f"{what}: expected a message of {nbytes} bytes, got one of {len(message)}; use the same version "
            "of gradwire on all ranks"
        )
    return message[:nbytes]


def matchings(hosts: Sequence[Hashable]) -> list[list[Pair]]:
    """Divide the pairs of neighbours in a ring of ranks into groups, whose pairs are measured concurrently.

    ``hosts`` are the hosts of the ranks. No group contains two pairs with a common host, or with a common
    rank if there is only one host. With several hosts, only the first pair within each host is measured.

    Examples
    --------
    >>> matchings("abcd")
    [[(0, 1), (2, 3)], [(1, 2), (0, 3)]]
    >>> matchings("aabb")
    [[(0, 1), (2, 3)], [(1, 2)], [(0, 3)]]
    """
    world, inside, groups = len(hosts), set[Hashable](), list[list[Pair]]()
    places = range(world) if len({*hosts}) == 1 else hosts
    ends = [(0, world - 1)] if world > 2 else []
    for low, high in [*((rank, rank + 1) for rank in range(world - 1)), *ends]:
        if places[low] == places[high]:
            if places[low] in inside:
                continue
            inside.add(places[low])
        ours = {places[low], places[high]}
        free = [g for g in groups if not ours & {places[rank] for pair in g for rank in pair}]
        if free:
            free[0].append((low, high))
        else:
            groups.append([(low, high)])
    return groups


def directions(hosts: Sequence[Hashable]) -> tuple[list[list[Pair]], list[list[Pair]]]:
    """Divide a ring's directions into groups to measure one way, and into groups to measure both ways.

    Frames travel from the first rank of a direction to the second rank. In a one-way group, a host either
    sends or receives. In a group for both ways, a host may send and receive.

    Examples
    --------
    >>> directions("abc")
    ([[(0, 1)], [(1, 2)], [(2, 0)]], [[(0, 1), (1, 2), (2, 0)]])
    """
    world, pairs = len(hosts), matchings(hosts)
    alone = [[each if each[1] == each[0] + 1 else each[::-1] for each in group] for group in pairs]
    places = range(world) if len({*hosts}) == 1 else hosts
    every = [direction for group in alone for direction in group] + ([(1, 0)] if world == 2 else [])
    both = list[list[Pair]]()
    for first, second in sorted(every):
        group = next(
            (
                group
                for group in both
                if all(places[first] != places[a] and places[second] != places[b] for a, b in group)
            ),
            None,
        )
        if group is None:
            both.append([(first, second)])
        else:
            group.append((first, second))
    return alone, both
