"""Ranks as processes: frames travel over TCP connections of Gloo, in PyTorch's own build of it.

A link makes its connections itself and uses a group only to find the peers (its members, and the store that
they share). So it does not mix with what else the group carries, works beside NCCL too, closes on its own,
and needs no ``new_group``, whose ``use_local_synchronization`` names groups differently on ranks that belong
to differently many groups (pytorch/pytorch#189073) and then waits forever.

Two connections lead to every peer, one for each direction of frames. Gloo lets a receiver tell the sender
that it is ready, on the connection of the frame; on one that carries frames the other way, too, this word
would wait behind all that the socket holds (two hosts at 200 Mbit lost a tenth of an exchange so).

Gloo takes a message into a buffer that is larger, without telling the size, and ends the process when the
buffer is too small; an exchange therefore receives into buffers of ``wire.MAX_FRAME_NBYTES``.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_process_group_store

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links.base import Link

_TAG = 0
_NO_TIMEOUT_TOLD = 0.0
_links_made = weakref.WeakKeyDictionary[dist.ProcessGroup, int]()


class _Operation:
    """A send or a receive under way."""

    def __init__(self, work: dist.Work | None, buffer: torch.Tensor, what: str, timeout_s: float) -> None:
        self.work, self.buffer, self.what, self.timeout_s = work, buffer, what, timeout_s

    def settle(self) -> None:
        work, self.work = self.work, None
        if work is None:
            raise LinkError(f"{self.what}: the own link is closed")
        try:
            work.wait(timedelta(seconds=self.timeout_s))
        except (RuntimeError, ValueError) as error:
            raise _translated(error, self.what, self.timeout_s) from error
        finally:
            del work  # it keeps its connection open, and whoever keeps the error keeps this frame


class _Sending(_Operation):
    def wait(self) -> None:
        self.settle()


class _Receiving(_Operation):
    def wait(self) -> torch.Tensor:
        self.settle()
        return self.buffer


_Kind = TypeVar("_Kind", bound=_Operation)


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
            "could meet; initialise torch.distributed with gloo or nccl, or use gradwire.links.MpiLink"
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


class ProcessGroupLink(Link):
    """One process, connected with the other members of a group.

    All members make their links of one group in the same order, together. Raises ``LinkError`` when the
    others do not come within the timeout.

    Parameters
    ----------
    group
        Any group of ``torch.distributed`` that this process belongs to.
    ranks
        The members' global ranks in the order of the link's ranks: ``[3, 0, 1, 2]`` makes the process 3 the
        link's rank 0. The group's own order where it is None.
    timeout_s
        How long a wait lasts at most.
    """

    HAS_ALL_REDUCE = True

    def __init__(
        self, group: dist.ProcessGroup, ranks: Sequence[int] | None = None, timeout_s: float = 30.0
    ) -> None:
        members = dist.get_process_group_ranks(group)
        order = list(members if ranks is None else ranks)
        if sorted(order) != sorted(members):
            raise LinkError(f"ranks must be an order of the group's ranks {sorted(members)}, but is {order}")
        self.rank, self.world, self.timeout_s = order.index(dist.get_rank()), len(order), timeout_s
        self._operations = weakref.WeakSet[_Operation]()
        self._ways: tuple[dist.ProcessGroupGloo, ...] | None = self._connect(group)

    def isend(self, to: int, frame: torch.Tensor) -> _Sending:
        """Start sending ``frame`` to the rank ``to``."""
        what = f"rank {self.rank} sending to rank {to}"
        return self._start(_Sending, "send", frame, to, upwards=to > self.rank, what=what)

    def irecv(self, source: int, buffer: torch.Tensor) -> _Receiving:
        """Start receiving a frame from the rank ``source`` into ``buffer``."""
        what = f"rank {self.rank} receiving from rank {source}"
        return self._start(_Receiving, "recv", buffer, source, upwards=source < self.rank, what=what)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor`` by its sum over all ranks, with Gloo's all-reduce."""
        what = f"rank {self.rank} in Gloo's all-reduce of {tensor.numel()} values over {self.world} ranks"
        if self._ways is None:
            raise LinkError(f"{what}: the own link is closed")
        try:
            options = dist.AllreduceOptions()
            options.timeout = timedelta(seconds=self.timeout_s)  # for each of Gloo's messages
            gloo: Any = self._ways[0]  # torch's stub leaves the call out
            gloo.allreduce([tensor], options).wait()
        except (RuntimeError, ValueError) as error:
            raise _translated(error, what, self.timeout_s) from error

    def close(self) -> None:
        """Close the connections; the peers' waits for this rank end with an error."""
        for operation in list(self._operations):
            operation.work = None  # it would keep its connection open
        self._ways = None

    def _connect(self, group: dist.ProcessGroup) -> tuple[dist.ProcessGroupGloo, dist.ProcessGroupGloo]:
        """Return the connections for frames to lower ranks and for those to higher ones."""
        number = _links_made.get(group, 0)
        _links_made[group] = number + 1
        store = PrefixStore(f"gradwire/{number}", store_of(group))
        try:
            store.set(f"rank {self.rank} is here", "")
            down = dist.ProcessGroupGloo(
                PrefixStore("down", store), self.rank, self.world, timedelta(seconds=self.timeout_s)
            )
            again: Any = down.options  # with its device, and so its thread; torch's stub has no such call
            return down, dist.ProcessGroupGloo(PrefixStore("up", store), self.rank, self.world, again)
        except RuntimeError as error:
            what = f"rank {self.rank} connecting with the {self.world} ranks of its group"
            raise _translated(error, what + self._absent(store), self.timeout_s) from error

    def _absent(self, store: PrefixStore) -> str:
        """Name the ranks that have not come; nothing where all have, or where the store itself is gone."""
        try:
            gone = [rank for rank in range(self.world) if not store.check([f"rank {rank} is here"])]
        except RuntimeError:
            return ""
        return f" ({' and '.join(f'rank {rank}' for rank in gone)} did not come)" if gone else ""

    def _start(
        self,
        kind: type[_Kind],
        call: Literal["send", "recv"],
        tensor: torch.Tensor,
        peer: int,
        *,
        upwards: bool,
        what: str,
    ) -> _Kind:
        if self._ways is None:
            raise LinkError(f"{what}: the own link is closed")
        try:
            work = getattr(self._ways[upwards], call)([tensor], peer, _TAG)
        except (RuntimeError, ValueError) as error:
            raise _translated(error, what, self.timeout_s) from error
        operation = kind(work, tensor, what, self.timeout_s)
        self._operations.add(operation)
        return operation


def _translated(error: Exception, what: str, timeout_s: float) -> LinkError:
    text = str(error).partition("] ")[2] or str(
        error
    )  # behind the place in the source that Gloo puts in front
    if "timed out" in text.lower() or "timeout" in text.lower():
        return LinkTimeoutError(f"{what}: nothing happened within {timeout_s:g} s")
    if "unsupported gloo device" in text:
        return LinkError(
            f"{what}: this PyTorch has no Gloo transport as GLOO_DEVICE_TRANSPORT asks for (unsupported gloo "
            "device); unset it, and see docs/tls.md for another way to encrypt"
        )
    return LinkError(f"{what}: {text.partition('. ')[0]}")
