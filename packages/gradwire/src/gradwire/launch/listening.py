"""The choice of the addresses on which ranks listen, with the help of the store that all ranks share.

A rank on a host without the store listens on the local address of its route to the store. On the store's
host, that route may be the loopback interface, as on Debian, where a host's own name resolves to a loopback
address. Therefore, a rank on the store's host listens on the local address of its route to a rank on another
host. If there is no such rank, all ranks run on the store's host, where any address works.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from time import monotonic

from torch._C._distributed_c10d import PrefixStore, Store

from gradwire.launch.addresses import VARIABLE, choice_towards, interface_of, is_loopback, own_choice
from gradwire.launch.store import TimedStore


def listening_address(store: TimedStore, rank: int, world: int, deadline: float, lane: int = 0) -> str:
    """Return the address on which this rank's lane listens. All ranks of the store call this once per lane.

    Raises ``LinkError``, and ``TimeoutError`` if this rank needs another rank's address and doesn't get it.
    """
    own = own_choice(os.environ, store.host, lane)
    store.set(address_key(rank), own, deadline)
    return own or choice_towards(_others(store, rank, world, deadline), os.environ)


def address_key(rank: int) -> str:
    """Return the key of a rank's address in the store; the value "" means that it depends on other ranks."""
    return f"address {rank}"


def _others(store: TimedStore, rank: int, world: int, deadline: float) -> Iterator[str]:
    """Yield the other ranks' addresses, waiting for each of them; omit those that no other host can reach."""
    for other in range(world):
        if other != rank:
            (address,) = store.get([address_key(other)], deadline)
            if address and not is_loopback(address):
                yield address


def direct_gloo(store: Store, rank: int, world: int, doing: str, timeout_s: float) -> None:
    """Make this process's Gloo groups listen on its links' interface, not on the address of the host's name.

    All ranks of the store call this once, with the same key prefix. A rank for which the user selects an
    interface keeps it, and publishes its address for the other ranks. Raises the errors of
    ``listening_address``.
    """
    if world > 1:
        timed = TimedStore(PrefixStore("gradwire/gloo", store), doing)
        name = interface_of(listening_address(timed, rank, world, monotonic() + timeout_s))
        if name and not os.environ.get(VARIABLE):
            os.environ[VARIABLE] = name
