"""Ranks as processes that discover each other through a group of ``torch.distributed``.

A link opens its own connections. It uses a group only to find the members and their shared store. So it
doesn't interfere with the group's other traffic, also works with NCCL, is closed independently, and needs no
``new_group``. With ``use_local_synchronization``, ``new_group`` gives groups different names on ranks that
belong to different numbers of groups, and then waits forever (pytorch/pytorch#189073).

Frames are sent over the link's own sockets, with TLS if the environment has its variables (``tls``). The
link's all-reduce is Gloo's, on connections that the first call opens. A link with TLS has no all-reduce,
because Gloo's connections are in plain text.

A link may have a second connection to each peer, marked with a type of service, for values that NICs may
compress. Such a link has no TLS, because a NIC can't compress encrypted values.
"""

from __future__ import annotations

import ctypes
import os
import socket
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_process_group_store

from gradwire.errors import LinkError, LinkTimeoutError, shown
from gradwire.launch.addresses import gloo_interfaces
from gradwire.launch.store import TimedStore
from gradwire.links.base import OWN_END
from gradwire.links.rendezvous.attempt import own_part, refuse_marks
from gradwire.links.rendezvous.connect import connect_ranks
from gradwire.links.rendezvous.endpoints import Endpoints
from gradwire.links.rendezvous.tls import encryption
from gradwire.links.sockets import SocketLink

# Gloo's all-reduce between the ranks of a link, on connections that are made when it is first called.
#
# Gloo waits for a whole timeout if a peer is gone before it has connected, and this wait can't be
# interrupted. So its ranks connect through a store that watches the link's own connections, and a wait here
# looks at them now and then.

_LOOK_UP_S = 0.1
_CONNECT_ATTEMPTS = 5
"""The number of times that Gloo tries to reach a peer that died after publishing its address."""


class Reduction:
    """A Gloo all-reduce in flight; its error messages start with ``what``."""

    def __init__(self, work: Any, what: str, timeout_s: float, ranks: GlooAllReduce) -> None:
        self._work, self._what, self._timeout_s, self._ranks = work, what, timeout_s, ranks

    @property
    def is_over(self) -> bool:
        """Whether the all-reduce has finished or failed."""
        over: bool = self._work.is_completed()
        return over

    def _ends_soon(self) -> bool:
        with suppress(RuntimeError):  # the timeout; any other error is raised again by the last wait
            self._work.wait(timedelta(seconds=_LOOK_UP_S))
        return self.is_over

    def wait(self, most_s: float = inf) -> None:
        """Wait up to ``most_s`` until the tensor is the sum. Raises ``LinkError``."""
        until, ended, ranks = time.monotonic() + most_s, inf, self._ranks
        try:
            while not self._ends_soon():
                if ranks.closed:
                    raise LinkError(f"{self._what}: {OWN_END}")
                now = time.monotonic()
                # A peer may have its sum, and leave, while this rank's is still incomplete. But a peer that
                # has failed keeps Gloo's connections until its process ends.
                ended = min(ended, now + ranks.connect_s) if ranks.gone() else inf
                if now > ended:
                    raise LinkError(f"{self._what}{ranks.closed_peer()}: the sum is incomplete")
                if now > until:
                    raise LinkTimeoutError(f"{self._what}: the sum is incomplete after {most_s:g} s")
            self._work.wait()
        except RuntimeError as error:
            raise ranks.failed(error, self._what, self._timeout_s) from error


class GlooAllReduce:
    """One rank's end of a link's Gloo all-reduces.

    Parameters
    ----------
    store
        The store that the link's ranks share; its prefix ``all-reduce`` must be unused.
    names
        The names of the ranks in errors.
    connect_s
        The timeout for Gloo's connections once all ranks have arrived.
    gone
        A function that returns the peers that have closed their links.
    address
        The address at which Gloo listens unless its variable names an interface; its own choice if empty.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        names: Sequence[str],
        connect_s: float,
        gone: Callable[[], list[int]],
        address: str = "",
    ) -> None:
        self._store, self._address = PrefixStore("all-reduce", store), address
        self._rank, self._names, self.connect_s, self.gone = rank, names, connect_s, gone
        self.closed = False
        self._group: dist.ProcessGroupGloo | None = None
        self._under_way: list[Reduction] = []
        self._has_summed = False

    @property
    def is_connected(self) -> bool:
        """Whether a call to ``sum`` has succeeded, so that ``begin`` may be called."""
        return self._group is not None and self._has_summed

    def sum(self, tensor: torch.Tensor, timeout_s: float) -> None:
        """Replace ``tensor`` with its sum over all ranks, and wait for it. Raises ``LinkError``."""
        what = self._what(tensor)
        try:
            if self._group is None:
                self._group = self._connect(what, timeout_s)
        except (RuntimeError, ValueError) as error:
            raise self.failed(error, what, timeout_s) from error
        self.begin(tensor, timeout_s).wait()
        self._has_summed = True

    def begin(self, tensor: torch.Tensor, timeout_s: float) -> Reduction:
        """Start to replace ``tensor`` with its sum. Raises ``LinkError``."""
        what, options = self._what(tensor), dist.AllreduceOptions()
        options.timeout = timedelta(seconds=timeout_s)  # for each of Gloo's messages
        group: Any = self._group  # torch's stub lacks the call
        if group is None:
            raise LinkError(f"{what}: {OWN_END}")
        try:
            work = group.allreduce([tensor], options)
        except (RuntimeError, ValueError) as error:
            raise self.failed(error, what, timeout_s) from error
        reduction = Reduction(work, what, timeout_s, self)
        self._under_way = [*(each for each in self._under_way if not each.is_over), reduction]
        if self.closed:
            _keep(group)
        return reduction

    def close(self) -> None:
        """Close Gloo's connections; waits in progress in other threads soon raise an error."""
        self.closed = True
        group, self._group = self._group, None
        if group is not None and not all(each.is_over for each in self._under_way):
            _keep(group)

    def failed(self, error: Exception, what: str, timeout_s: float) -> LinkError:
        """Return the ``LinkError`` for an error of Gloo, with the peer that has closed its link, if known."""
        return _translated(error, f"{what}{self.closed_peer()}", timeout_s)

    def closed_peer(self) -> str:
        """Return text that names a peer that has closed its link, if one is found soon.

        Gloo's errors name no rank.
        """
        until = time.monotonic() + _LOOK_UP_S
        while not (peers := self.gone()) and time.monotonic() < until:
            time.sleep(0.01)
        return f" ({self._names[peers[0]]} has closed its link)" if peers else ""

    def _what(self, tensor: torch.Tensor) -> str:
        own, ranks = self._names[self._rank], len(self._names)
        return f"{own} in Gloo's all-reduce of {tensor.numel()} values over {ranks} ranks"

    def _connect(self, what: str, timeout_s: float) -> dist.ProcessGroupGloo:
        def check() -> None:
            if self.closed:
                raise LinkError(f"{what}: {OWN_END}")
            for peer in self.gone():
                raise LinkError(f"{what}: {self._names[peer]} has closed its link")

        watched = _WatchedStore(TimedStore(self._store, what), time.monotonic() + timeout_s, check)
        try:
            gloo: Any = dist.ProcessGroupGloo  # torch's stub lacks the options
            options = gloo._Options()
            options._timeout = timedelta(seconds=self.connect_s / _CONNECT_ATTEMPTS)
            options._devices = self._devices()
            group: dist.ProcessGroupGloo = gloo(watched, self._rank, len(self._names), options)
            return group
        except LinkError:
            raise
        except TimeoutError as error:
            raise LinkTimeoutError(f"{what}: not all ranks joined within {timeout_s:g} s") from error

    def _devices(self) -> list[Any]:
        """Return Gloo's ends of connections, one for each address at which it listens."""
        device, named = dist.ProcessGroupGloo.create_device, gloo_interfaces(os.environ)
        if named:
            return [device(interface=name) for name in named]
        if self._address:
            return [device(hostname=self._address)]
        return [dist.ProcessGroupGloo.create_default_device()]


def _translated(error: Exception, what: str, timeout_s: float) -> LinkError:
    """Return the ``LinkError`` that corresponds to the text of an error of Gloo."""
    text = str(error).partition("] ")[2] or str(error)  # after the line of Gloo's source
    if "timed out" in text.lower() or "timeout" in text.lower():
        return LinkTimeoutError(f"{what}: no progress within {timeout_s:g} s")
    return LinkError(f"{what}: {text.partition('. ')[0]}")


def _keep(group: dist.ProcessGroupGloo) -> None:
    """Keep a group with work in flight alive forever, because its destructor would wait for the peers."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


class _WatchedStore(Store):
    """The store through which Gloo's ranks connect.

    Waits end at the deadline or with the error of ``check``.
    """

    def __init__(self, store: TimedStore, deadline: float, check: Callable[[], None]) -> None:
        super().__init__()
        self._store, self._deadline, self._check = store, deadline, check

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, bytes(value).hex(), self._deadline)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return bytes.fromhex(self._store.get(key, self._deadline))

    def wait(self, keys: Any, timeout: timedelta | None = None) -> None:  # noqa: ARG002 - it has its own
        self._store.wait(keys, self._deadline, self._check)


_NO_TIMEOUT = 0.0
_DSCP = 0xFC
_TRANSPORT = "GLOO_DEVICE_TRANSPORT"
_links_made = weakref.WeakKeyDictionary[dist.ProcessGroup, int]()


def store_of(group: dist.ProcessGroup) -> Store:
    """Return the store that a group's members share.

    Raises ``LinkError`` if there is none, as with torch's backend ``mpi``, which uses MPI's own discovery.
    """
    store = innermost = _get_process_group_store(group)
    while isinstance(innermost, PrefixStore):
        innermost = innermost.underlying_store
    if type(innermost) is Store:  # torch's placeholder for none
        raise LinkError(
            f"expected a group with a store for rendezvous, got the backend {dist.get_backend(group)!r} "
            "without one; initialise torch.distributed with gloo or nccl, or use gradwire.links.MpiLink"
        )
    return store


def timeout_s_of(group: dist.ProcessGroup) -> float:
    """Return the longest timeout of a group's backends in seconds; torch's default if they have none."""
    found = [_NO_TIMEOUT]
    for device in group._device_types:
        backend: Any = group._get_backend(device)
        with suppress(AttributeError, RuntimeError):  # a backend without options
            found.append(backend.options._timeout.total_seconds())
    return max(found) or default_pg_timeout.total_seconds()


class ProcessGroupLink(SocketLink):
    """A link between the processes of a ``torch.distributed`` group.

    All members create their links of one group together, in the same order. Raises ``LinkError`` if the
    others do not join within the timeout.

    Errors name a rank by its global rank, and by its address if it is on another host. ``GRADWIRE_TLS_KEY``,
    ``GRADWIRE_TLS_CERT`` and ``GRADWIRE_TLS_CA`` in the environment encrypt the frames between ranks whose
    certificates that authority has signed. The owner of any such certificate can act as any rank, unless
    ``GRADWIRE_TLS_NAMES`` maps ranks to names.

    Parameters
    ----------
    group
        Any group of ``torch.distributed`` that this process belongs to.
    ranks
        The members' global ranks in the order of the link's ranks: ``[3, 0, 1, 2]`` makes global rank 3 the
        link's rank 0. None keeps the group's order.
    timeout_s
        The default timeout of waits without progress.
    tos
        The type of service that marks the connections for values that NICs may compress, such as
        ``gradwire.wire.TOS``; 0 for no such connections. The same on all members.
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
            raise LinkError(
                f"ranks: expected a permutation of the group's ranks {sorted(members)}, got {order}"
            )
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
            own = Endpoints(store, what, time.monotonic() + timeout_s, names).find(rank)
        except BaseException:
            for each in connections.values():
                each.close()
            raise
        names = _with_hosts(names, connections)
        super().__init__(rank, connections, timeout_s, names, marked, tos)
        gone = weakref.WeakMethod(self._gone)  # no cycle, so that an unclosed link is freed immediately
        self._gloo = GlooAllReduce(
            store, rank, names, timeout_s, lambda: (gone() or list[int])(), own.address if own else ""
        )

    def all_reduce(self, tensor: torch.Tensor, timeout_s: float | None = None) -> None:
        """Replace ``tensor`` with its sum over all ranks, with Gloo's all-reduce."""
        if not self.HAS_ALL_REDUCE:
            raise LinkError(
                "expected a link without TLS, which Gloo's all-reduce doesn't support, got one with TLS; "
                "use algorithm='ring'"
            )
        self._gloo.sum(tensor, self.timeout_s if timeout_s is None else timeout_s)

    @property
    def begins_all_reduces(self) -> bool:
        """Whether Gloo is connected: after the first all-reduce."""
        return self._gloo.is_connected

    def begin_all_reduce(self, tensor: torch.Tensor, timeout_s: float | None = None) -> Reduction:
        """Start an ``all_reduce`` without waiting for its sum. Raises ``LinkError``."""
        return self._gloo.begin(tensor, self.timeout_s if timeout_s is None else timeout_s)

    def _gone(self) -> list[int]:
        """Return the peers whose connections have ended. Raises ``OutOfStepError``."""
        self.check_steps()
        return self.gone()

    def close(self) -> None:
        """Close the connections; all waits of this rank, and of peers for it, raise an error."""
        super().close()
        self._gloo.close()


def _with_hosts(names: Sequence[str], connections: Mapping[int, socket.socket]) -> list[str]:
    """Return the names with the addresses of ranks on other hosts appended."""
    found = list(names)
    for peer, connection in connections.items():
        with suppress(OSError):  # the peer has already closed its link
            own, its = connection.getsockname()[0], connection.getpeername()[0]
            if its != own:
                found[peer] += f" at {its}"
    return found


def check_tos(tos: int) -> None:
    """Raise ``LinkError`` unless ``tos`` is 0 or a valid type of service."""
    if not isinstance(tos, int) or not 0 <= tos <= 255 or (tos and not tos & _DSCP):
        raise LinkError(
            "tos: expected a type of service from 0x04 to 0xff, or 0 to leave connections unmarked, got "
            f"{shown(tos)}; pass, e.g., gradwire.wire.TOS"
        )


def _refuse_other_transports(rank: int, world: int) -> None:
    """Raise ``LinkError`` if the environment makes Gloo encrypt.

    That would have no effect on gradwire's frames.
    """
    chosen = os.environ.get(_TRANSPORT) or "TCP"
    if chosen != "TCP":
        raise LinkError(
            f"rank {rank} connecting with the {world} ranks of its group: {_TRANSPORT} is {chosen}, which "
            "does not encrypt gradwire's frames; set GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and "
            f"GRADWIRE_TLS_CA (docs/tls.md), or unset {_TRANSPORT}"
        )
