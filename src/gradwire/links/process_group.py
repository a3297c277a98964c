"""Ranks as processes that find each other through a group of ``torch.distributed``.

A link makes its connections itself and uses a group only to find the peers (its members, and the store that
they share). So it does not mix with what else the group carries, works beside NCCL too, closes on its own,
and needs no ``new_group``, whose ``use_local_synchronization`` names groups differently on ranks that belong
to differently many groups (pytorch/pytorch#189073) and then waits forever.

Frames travel over sockets of the link's own, with TLS where the environment asks for that (``tls``). Its
all-reduce is Gloo's, on connections that are made when it is first called, and not there with TLS: Gloo's
connections are in plain text.

A link may have a second connection to each peer, marked with a type of service, for values that NICs on the
way may compress. There is no TLS then: a NIC can't compress what is encrypted.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_process_group_store

from gradwire.errors import LinkError, shown
from gradwire.links.gloo import GlooAllReduce, Reduction
from gradwire.links.rendezvous.attempt import own_part
from gradwire.links.rendezvous.connect import connect_ranks
from gradwire.links.rendezvous.same_encryption import refuse_marks
from gradwire.links.rendezvous.tls import encryption
from gradwire.links.sockets import SocketLink

_NO_TIMEOUT_TOLD = 0.0
_DSCP = 0xFC
_TRANSPORT = "GLOO_DEVICE_TRANSPORT"
_links_made = weakref.WeakKeyDictionary[dist.ProcessGroup, int]()


def store_of(group: dist.ProcessGroup) -> Store:
    """Return the store that a group's members share.

    Raises ``LinkError`` where they share none, as with torch's backend ``mpi``, which finds ranks by itself.
    """
    store = innermost = _get_process_group_store(group)
    while isinstance(innermost, PrefixStore):
        innermost = innermost.underlying_store
    if type(innermost) is Store:  # what torch puts in the place of none
        raise LinkError(
            f"the backend {dist.get_backend(group)!r} of this group has no store through which its ranks "
            "could find each other; initialise torch.distributed with gloo or nccl, or use "
            "gradwire.links.MpiLink"
        )
    return store


def timeout_s_of(group: dist.ProcessGroup) -> float:
    """Return the longest timeout of a group's backends in seconds; torch's default where they tell none."""
    found = [_NO_TIMEOUT_TOLD]
    for device in group._device_types:
        backend: Any = group._get_backend(device)
        with suppress(AttributeError, RuntimeError):  # a backend without options
            found.append(backend.options._timeout.total_seconds())
    return max(found) or default_pg_timeout.total_seconds()


class ProcessGroupLink(SocketLink):
    """One process, connected with the other members of a group.

    All members make their links of one group in the same order, together. Raises ``LinkError`` when the
    others do not come within the timeout.

    Errors call a rank by its number in the world, and by its address where that is another host's.
    ``GRADWIRE_TLS_KEY``, ``GRADWIRE_TLS_CERT`` and ``GRADWIRE_TLS_CA`` in the environment encrypt the frames,
    between ranks whose certificates that authority has signed; whoever has one can be a rank, unless
    ``GRADWIRE_TLS_NAMES`` says which names are whose.

    Parameters
    ----------
    group
        Any group of ``torch.distributed`` that this process belongs to.
    ranks
        The members' global ranks in the order of the link's ranks: ``[3, 0, 1, 2]`` makes the process 3 the
        link's rank 0. The group's own order where it is None.
    timeout_s
        How long a wait lasts at most, unless it says otherwise.
    tos
        The type of service that marks the connections for values that NICs may compress, such as
        ``gradwire.wire.TOS``; 0 for a link without them. The same on all members.
    """

    HAS_ALL_REDUCE = True

    def __init__(
        self,
        group: dist.ProcessGroup,
        ranks: Sequence[int] | None = None,
        timeout_s: float = 30.0,
        tos: int = 0,
    ) -> None:
        check_tos(tos)
        members = dist.get_process_group_ranks(group)
        order = list(members if ranks is None else ranks)
        if sorted(order) != sorted(members):
            raise LinkError(f"ranks must be an order of the group's ranks {sorted(members)}, but is {order}")
        number = _links_made.get(group, 0)
        _links_made[group] = number + 1
        rank = order.index(dist.get_rank())
        tls = encryption(os.environ)
        if tls is None:
            _refuse_other_transports(dist.get_rank(), len(order))
        else:
            refuse_marks(tos, dist.get_rank(), len(order))
            self.HAS_ALL_REDUCE = False
            tls = tls.of_link(rank, order)
        names = [f"rank {each}" for each in order]
        what = f"{names[rank]} connecting with the {len(order)} ranks of its group"
        store = PrefixStore(f"link {number}", own_part(group, store_of(group), what, timeout_s))
        connections = connect_ranks(store, rank, names, timeout_s, tls)
        try:
            marked = (
                connect_ranks(PrefixStore("marked", store), rank, names, timeout_s, tos=tos) if tos else {}
            )
        except BaseException:
            for each in connections.values():
                each.close()
            raise
        names = _with_hosts(names, connections)
        super().__init__(rank, connections, timeout_s, names, marked, tos)
        self._gloo = GlooAllReduce(store, rank, names, timeout_s)

    def all_reduce(self, tensor: torch.Tensor, timeout_s: float | None = None) -> None:
        """Replace ``tensor`` by its sum over all ranks, with Gloo's all-reduce."""
        if not self.HAS_ALL_REDUCE:
            raise LinkError("Gloo's all-reduce goes in plain text, but this link's frames go with TLS")
        self._gloo.sum(tensor, self.timeout_s if timeout_s is None else timeout_s, self._gone)

    @property
    def begins_all_reduces(self) -> bool:
        """Whether Gloo is connected, as it is after the first all-reduce."""
        return self._gloo.is_connected

    def begin_all_reduce(self, tensor: torch.Tensor, timeout_s: float | None = None) -> Reduction:
        """Begin what ``all_reduce`` does. Raises ``LinkError``."""
        return self._gloo.begin(tensor, self.timeout_s if timeout_s is None else timeout_s, self._gone)

    def _gone(self) -> list[int]:
        """Return the peers whose connections have ended. Raises ``OutOfStepError``."""
        self.check_steps()
        return self.gone()

    def close(self) -> None:
        """Close the connections; the peers' waits for this rank end with an error, and so do the own."""
        super().close()
        self._gloo.close()


def _with_hosts(names: Sequence[str], connections: Mapping[int, socket.socket]) -> list[str]:
    """Return the names with the addresses of those ranks that other hosts have."""
    found = list(names)
    for peer, connection in connections.items():
        with suppress(OSError):  # it has closed its link already
            own, its = connection.getsockname()[0], connection.getpeername()[0]
            if its != own:
                found[peer] += f" at {its}"
    return found


def check_tos(tos: int) -> None:
    """Raise ``LinkError`` unless connections can be marked with ``tos``, or not at all."""
    if not isinstance(tos, int) or not 0 <= tos <= 255 or (tos and not tos & _DSCP):
        raise LinkError(
            "tos must be the type of service of marked connections, from 0x04 to 0xff, or 0 for none, but is "
            f"{shown(tos)}"
        )


def _refuse_other_transports(rank: int, world: int) -> None:
    """Raise ``LinkError`` where the environment wants Gloo to encrypt, which has no effect on frames."""
    wanted = os.environ.get(_TRANSPORT) or "TCP"
    if wanted != "TCP":
        raise LinkError(
            f"rank {rank} connecting with the {world} ranks of its group: {_TRANSPORT} is {wanted}, which "
            "does not reach gradwire's frames; set GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and GRADWIRE_TLS_CA "
            "to encrypt those (docs/tls.md), or unset it"
        )
