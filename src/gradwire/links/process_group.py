"""Ranks as processes: frames travel by the point-to-point calls of ``torch.distributed``, with Gloo or MPI.

The group must carry nothing else: make it with ``torch.distributed.new_group`` and hand it over. Closing the
link destroys the group, which closes its connections and so wakes the peers; that works only while nobody
else holds on to the group.

Gloo takes a message into a buffer that is larger, without telling the size, and ends the process when the
buffer is too small; an exchange therefore receives into buffers of ``wire.MAX_FRAME_NBYTES``.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links.base import Link


class _Operation:
    """A send or a receive under way."""

    def __init__(self, work: dist.Work | None, buffer: torch.Tensor, what: str, timeout_s: float) -> None:
        self.work, self.buffer, self.what, self.timeout_s = work, buffer, what, timeout_s

    def settle(self) -> None:
        work = self.work
        if work is None:
            raise LinkError(f"{self.what}: the own link is closed")
        try:
            work.wait(timedelta(seconds=self.timeout_s))
        except (RuntimeError, ValueError) as error:
            raise _translated(error, self.what, self.timeout_s) from error
        self.work = None


class _Sending(_Operation):
    def wait(self) -> None:
        self.settle()


class _Receiving(_Operation):
    def wait(self) -> torch.Tensor:
        self.settle()
        return self.buffer


class ProcessGroupLink(Link):
    """One process, as a member of a group.

    Parameters
    ----------
    group
        A group of its own, of which this process is a member; the link takes it over.
    ranks
        The global ranks in the order of the link's ranks: ``[3, 0, 1, 2]`` makes the process 3 the link's
        rank 0. The group's own order where it is None.
    timeout_s
        How long a wait lasts at most.
    """

    def __init__(
        self, group: dist.ProcessGroup, ranks: Sequence[int] | None = None, timeout_s: float = 30.0
    ) -> None:
        members = dist.get_process_group_ranks(group)
        self._ranks = list(members if ranks is None else ranks)
        if sorted(self._ranks) != sorted(members):
            raise LinkError(
                f"ranks must be an order of the group's ranks {sorted(members)}, but is {self._ranks}"
            )
        self.rank, self.world, self.timeout_s = self._ranks.index(dist.get_rank()), len(members), timeout_s
        self._group: dist.ProcessGroup | None = group
        self._operations = weakref.WeakSet[_Operation]()

    def isend(self, to: int, frame: torch.Tensor) -> _Sending:
        """Start sending ``frame`` to the rank ``to``."""
        what = f"rank {self.rank} sending to rank {to}"
        sending = _Sending(self._start(dist.isend, frame, to, what), frame, what, self.timeout_s)
        self._operations.add(sending)
        return sending

    def irecv(self, source: int, buffer: torch.Tensor) -> _Receiving:
        """Start receiving a frame from the rank ``source`` into ``buffer``."""
        what = f"rank {self.rank} receiving from rank {source}"
        receiving = _Receiving(self._start(dist.irecv, buffer, source, what), buffer, what, self.timeout_s)
        self._operations.add(receiving)
        return receiving

    def close(self) -> None:
        """Destroy the group; the peers' waits for this rank end with an error."""
        for operation in self._operations:
            operation.work = None  # it would keep the connection open
        group, self._group = self._group, None
        if group is not None:
            with contextlib.suppress(
                AssertionError, RuntimeError, ValueError
            ):  # torch.distributed is gone already
                dist.destroy_process_group(group)

    def _start(
        self, call: Callable[..., dist.Work | None], tensor: torch.Tensor, peer: int, what: str
    ) -> dist.Work | None:
        if self._group is None:
            raise LinkError(f"{what}: the own link is closed")
        try:
            return call(tensor, self._ranks[peer], group=self._group)
        except (RuntimeError, ValueError) as error:
            raise _translated(error, what, self.timeout_s) from error


def _translated(error: Exception, what: str, timeout_s: float) -> LinkError:
    text = str(error).partition("] ")[2] or str(
        error
    )  # behind the place in the source that Gloo puts in front
    if "timed out" in text.lower():
        return LinkTimeoutError(f"{what}: nothing happened within {timeout_s:g} s")
    return LinkError(f"{what}: {text.partition('. ')[0]}")
