"""Ranks as processes that discover each other through a group of ``torch.distributed``.

A link opens its own connections, and uses a group only to find the members and their shared store. Therefore,
a link doesn't interfere with the group's other traffic, also works with NCCL, is closed independently, and
needs no ``new_group``. With ``use_local_synchronization``, ``new_group`` gives groups different names on
ranks that belong to different numbers of groups, and then waits forever (pytorch/pytorch#189073).

Frames are sent over the link's own sockets, with TLS if its environment variables are set (``tls``). The
link's all-reduce is Gloo's, on connections that the first call opens. A link with TLS has no all-reduce,
because Gloo's connections are in plain text.

A link with marked connections for values that NICs may compress has no TLS: NICs can't compress encrypted
values.
"""

from __future__ import annotations

import os
import socket
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_process_group_store

from gradwire.errors import LinkError, shown
from gradwire.launch.store import innermost
from gradwire.links.gloo import GlooAllReduce, Reduction
from gradwire.links.rendezvous.attempt import own_part, refuse_marks
from gradwire.links.rendezvous.connect import connect_ranks
from gradwire.links.rendezvous.tls import encryption
from gradwire.links.sockets import SocketLink

_NO_TIMEOUT = 0.0
_DSCP = 0xFC
_TRANSPORT = "GLOO_DEVICE_TRANSPORT"
_links_made = weakref.WeakKeyDictionary[dist.ProcessGroup, int]()


def store_of(group: dist.ProcessGroup) -> Store:
    """Return the store that a group's members share. Raises ``LinkError`` without one, as with ``mpi``."""
    store = _get_process_group_store(group)
    if type(innermost(store)) is Store:  # torch's placeholder if there is no store
        raise LinkError(
            f"expected a group with a store for rendezvous, got the backend {dist.get_backend(group)!r} "
            "without one; initialise torch.distributed with gloo or nccl, or use gradwire.links.MpiLink"
        )
    return store


def timeout_s_of(group: dist.ProcessGroup) -> float:
    """Return the longest timeout of a group's backends in seconds; torch's default if none is set."""
    found = [_NO_TIMEOUT]
    for device in group._device_types:
        backend: Any = group._get_backend(device)
        with suppress(AttributeError, RuntimeError):  # a backend without options
            found.append(backend.options._timeout.total_seconds())
    return max(found) or default_pg_timeout.total_seconds()


class ProcessGroupLink(SocketLink):
    """A link between the processes of a ``torch.distributed`` group.

    All members create their links of one group together, in the same order. Raises ``LinkError`` if another
    member does not join within the timeout.

    Errors name a rank by its global rank, and by its address if it is on another host. With
    ``GRADWIRE_TLS_KEY``, ``GRADWIRE_TLS_CERT`` and ``GRADWIRE_TLS_CA`` in the environment, frames are
    encrypted, and the authority in ``GRADWIRE_TLS_CA`` must have signed every rank's certificate. The owner
    of any certificate of this authority can act as any rank, unless ``GRADWIRE_TLS_NAMES`` maps ranks to
    names.

    Parameters
    ----------
    group
        Any group of ``torch.distributed`` that this process belongs to.
    ranks
        The members' global ranks in the order of the link's ranks: ``[3, 0, 1, 2]`` makes global rank 3 the
        link's rank 0. None keeps the group's order.
    timeout_s
        The timeout of connecting, and the default timeout of waits.
    tos
        The type of service that marks the connections for values that NICs may compress, such as
        ``gradwire.wire.TOS``; 0 for no such connections. The same on all members.
    lane
        The number of this link among the lanes of a model. If ``GLOO_SOCKET_IFNAME`` has n interfaces, lane j
        uses interface j modulo n.
    """

    HAS_ALL_REDUCE = True

    def __init__(
        self,
        group: dist.ProcessGroup,
        ranks: Sequence[int] | None = None,
        timeout_s: float = 30.0,
        tos: int = 0,
        lane: int = 0,
    ) -> None:
        deadline, number = time.monotonic() + timeout_s, _links_made.get(group, 0)
        _links_made[group] = number + 1  # before errors, because the other ranks count this link, too
        check_tos(tos)
        members = dist.get_process_group_ranks(group)
        order = list(members if ranks is None else ranks)
        if sorted(order) != sorted(members):
            raise LinkError(
                f"ranks: expected a permutation of the group's ranks {sorted(members)}, got {order}; list "
                "each rank once"
            )
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
        connections = connect_ranks(store, rank, names, timeout_s, tls, lane=lane, deadline=deadline)
        marked: Mapping[int, socket.socket] = {}
        try:
            if tos:
                apart = PrefixStore("marked", store)
                marked = connect_ranks(apart, rank, names, timeout_s, tos=tos, lane=lane, deadline=deadline)
        except BaseException:
            for each in connections.values():
                each.close()
            raise
        addresses = _other_hosts(connections)
        self.hosts = 1 + len({*addresses.values()})
        names = [f"{name} at {addresses[i]}" if i in addresses else name for i, name in enumerate(names)]
        super().__init__(rank, connections, timeout_s, names, marked, tos)
        gone = weakref.WeakMethod(self._gone)  # no cycle, so that an unclosed link is freed immediately
        self._gloo = GlooAllReduce(
            store, rank, names, timeout_s, lambda: (gone() or list[int])(), connections.address
        )

    def all_reduce(self, tensor: torch.Tensor, timeout_s: float | None = None) -> None:
        """Replace ``tensor`` with its sum over all ranks, with Gloo's all-reduce."""
        if not self.HAS_ALL_REDUCE:
            raise LinkError(
                "expected a link without TLS, because Gloo's all-reduce sends plain text, got one with TLS; "
                "use algorithm='ring'"
            )
        self._gloo.sum(tensor, self.timeout_s if timeout_s is None else timeout_s)

    @property
    def begins_all_reduces(self) -> bool:
        """Whether Gloo is connected; the first all-reduce connects it."""
        return self._gloo.is_connected

    def begin_all_reduce(self, tensor: torch.Tensor, timeout_s: float | None = None) -> Reduction:
        """Start an ``all_reduce`` without waiting for its sum. Raises ``LinkError``."""
        return self._gloo.begin(tensor, self.timeout_s if timeout_s is None else timeout_s)

    def _gone(self) -> list[int]:
        """Return the peers whose connections have ended. Raises ``OutOfStepError``."""
        self.check_steps()
        return self.gone()

    def close(self) -> None:
        """Close the connections; waits of this rank, and waits of peers for this rank, raise an error."""
        super().close()
        self._gloo.close()


def _other_hosts(connections: Mapping[int, socket.socket]) -> dict[int, str]:
    """Return the addresses of the ranks on other hosts."""
    found = dict[int, str]()
    for peer, connection in connections.items():
        with suppress(OSError):  # the peer has already closed its link
            own, its = connection.getsockname()[0], connection.getpeername()[0]
            if its != own:
                found[peer] = its
    return found


def check_tos(tos: int) -> None:
    """Raise ``LinkError`` unless ``tos`` is 0 or a valid type of service."""
    if not isinstance(tos, int) or not 0 <= tos <= 255 or (tos and not tos & _DSCP):
        raise LinkError(
            "tos: expected a type of service from 0x04 to 0xff, or 0 to leave connections unmarked, got "
            f"{shown(tos)}; pass, for example, gradwire.wire.TOS"
        )


def _refuse_other_transports(rank: int, world: int) -> None:
    """Raise ``LinkError`` if Gloo would encrypt, which has no effect on gradwire's frames."""
    chosen = os.environ.get(_TRANSPORT) or "TCP"
    if chosen != "TCP":
        raise LinkError(
            f"rank {rank} connecting with the {world} ranks of its group: {_TRANSPORT} is {chosen}, which "
            "does not encrypt gradwire's frames; set GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and "
            f"GRADWIRE_TLS_CA (docs/tls.md), or unset {_TRANSPORT}"
        )
