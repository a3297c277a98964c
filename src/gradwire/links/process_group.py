"""Ranks as processes: frames travel over TCP connections of Gloo, in PyTorch's own build of it.

A link makes its connections itself and uses a group only to find the peers (its members, and the store that
they share). So it does not mix with what else the group carries, works beside NCCL too, closes on its own,
and needs no ``new_group``, whose ``use_local_synchronization`` names groups differently on ranks that belong
to differently many groups (pytorch/pytorch#189073) and then waits forever.

Gloo takes a message into a buffer that is larger, without telling the size, and ends the process when the
buffer is too small; an exchange therefore receives into buffers of ``wire.MAX_FRAME_NBYTES``.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_process_group_store

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links.base import Link

_TAG = 0
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

    def __init__(
        self, group: dist.ProcessGroup, ranks: Sequence[int] | None = None, timeout_s: float = 30.0
    ) -> None:
        members = dist.get_process_group_ranks(group)
        order = list(members if ranks is None else ranks)
        if sorted(order) != sorted(members):
            raise LinkError(f"ranks must be an order of the group's ranks {sorted(members)}, but is {order}")
        self.rank, self.world, self.timeout_s = order.index(dist.get_rank()), len(order), timeout_s
        self._operations = weakref.WeakSet[_Operation]()
        self._gloo: dist.ProcessGroupGloo | None = self._connect(group)

    def isend(self, to: int, frame: torch.Tensor) -> _Sending:
        """Start sending ``frame`` to the rank ``to``."""
        return self._start(_Sending, "send", frame, to, f"rank {self.rank} sending to rank {to}")

    def irecv(self, source: int, buffer: torch.Tensor) -> _Receiving:
        """Start receiving a frame from the rank ``source`` into ``buffer``."""
        return self._start(
            _Receiving, "recv", buffer, source, f"rank {self.rank} receiving from rank {source}"
        )

    def close(self) -> None:
        """Close the connections; the peers' waits for this rank end with an error."""
        for operation in self._operations:
            operation.work = None  # it would keep its connection open
        self._gloo = None

    def _connect(self, group: dist.ProcessGroup) -> dist.ProcessGroupGloo:
        number = _links_made.get(group, 0)
        _links_made[group] = number + 1
        store = PrefixStore(f"gradwire/{number}", _get_process_group_store(group))
        try:
            return dist.ProcessGroupGloo(store, self.rank, self.world, timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            what = f"rank {self.rank} connecting with the {self.world} ranks of its group"
            raise _translated(error, what, self.timeout_s) from error

    def _start(
        self, kind: type[_Kind], call: Literal["send", "recv"], tensor: torch.Tensor, peer: int, what: str
    ) -> _Kind:
        if self._gloo is None:
            raise LinkError(f"{what}: the own link is closed")
        try:
            work = getattr(self._gloo, call)([tensor], peer, _TAG)
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
    return LinkError(f"{what}: {text.partition('. ')[0]}")
