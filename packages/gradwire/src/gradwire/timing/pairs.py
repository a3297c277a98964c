"""The pairs of ranks between which links are measured, and which of them at the same time.

Pairs that share a host also share its uplink: measured at the same time, each would get a part of its rate.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Iterator, Sequence

from gradwire.links.base import Link
from gradwire.machine import is_inside, machine_id
from gradwire.wire import frame_memory, frame_of

Pair = tuple[int, int]
_NAME_NBYTES = 16
_NETWORK = "/proc/self/ns/net"


def hosts_of(link: Link) -> list[bytes]:
    """Return names of the ranks' hosts, equal on ranks that share one; all ranks call it.

    On a testbed, where all hosts share a machine, hosts are network namespaces. Raises ``LinkError``.
    """
    name = machine_id() + (os.readlink(_NETWORK) if is_inside() else "")
    return _from_all(link, hashlib.sha256(name.encode()).digest()[:_NAME_NBYTES])


def peers_in_turn(link: Link) -> Iterator[int]:
    """Yield the peers to which this rank measures its link, when it is their turn; all ranks call it.

    If ranks share hosts, it waits for all ranks between groups, so that no host takes part in two
    measurements. Raises ``LinkError``.
    """
    hosts = hosts_of(link)
    must_wait = len({*hosts}) not in (1, link.world)
    for number, group in enumerate(matchings(hosts)):
        if number and must_wait:
            _from_all(link, bytes(1))
        yield from (low + high - link.rank for low, high in group if link.rank in (low, high))


def _from_all(link: Link, name: bytes) -> list[bytes]:
    """Return the names of all ranks, which have the same length; this rank's is ``name``."""
    others = [rank for rank in range(link.world) if rank != link.rank]
    receivings = {rank: link.irecv(rank, frame_memory(len(name))) for rank in others}
    message = frame_of(name)
    for sending in [link.isend(rank, message) for rank in others]:
        sending.wait()
    heard = {rank: receiving.wait().numpy().tobytes() for rank, receiving in receivings.items()}
    return [heard.get(rank, name) for rank in range(link.world)]


def matchings(hosts: Sequence[Hashable]) -> list[list[Pair]]:
    """Return the neighbours in a ring of ranks on these hosts, in groups to measure at the same time.

    No group has two pairs with a common host, or with a common rank if there is one host. Of several
    pairs inside a host, only the first is measured if there are others.

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
