"""Ranks as MPI processes: frames travel over a communicator of the link's own, through mpi4py.

MPI moves messages while a process is in one of its calls, and its waits know no timeout. So a link never
calls one: it asks whether a message is through, sleeps a little, and asks again. It asks, too, whether the
peer has closed its link (``shutdown``), which ends a wait with an error.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links.base import OWN_END, Link
from gradwire.links.mpi_calls import (
    FIN,
    ClosedLink,
    Keepalives,
    calls,
    closing,
    free_communicators,
    intracommunicator,
    load_mpi,
    poll,
    reason,
)
from gradwire.links.rendezvous.attempt import check_same_version, joined
from gradwire.version import version

if TYPE_CHECKING:
    from mpi4py import MPI

_FRAME = 0  # the frames' tag
_VERSION_NBYTES = 64  # ASCII, with spaces at the end
_GRACE_S = 0.1  # a FIN may overtake the end of a large frame
_unfinished: list[tuple[MPI.Comm, MPI.Request]] = []  # what MPI may still write to


class _Operation:
    """A send or a receive under way."""

    def __init__(
        self, link: MpiLink, request: MPI.Request, memory: torch.Tensor, peer: int, what: str
    ) -> None:
        self.link, self.memory, self.peer, self.what = link, memory, peer, what
        self.request: MPI.Request | None = request
        self.nbytes: int | None = None

    def settle(self, timeout_s: float | None, keepalive: bool) -> int:
        """Return how many bytes went through. Raises ``LinkError``."""
        link, limit_s = self.link, self.link.timeout_s if timeout_s is None else timeout_s
        active_at = partial(link.active_at, limit_s) if keepalive else None
        try:
            if keepalive:
                link.send_keepalives_if_due(limit_s)
            in_time = poll(lambda: self._is_done() or link.has_left(self.peer), limit_s, active_at)
            if in_time and not poll(self._is_done, _GRACE_S):
                raise LinkError(f"{self.what}: {link.name_of(self.peer)} has closed its link")
        except RuntimeError as error:  # mpi4py's exception is one
            raise LinkError(f"{self.what}: {reason(error)}") from error
        if self.nbytes is None:
            raise LinkTimeoutError(f"{self.what}: nothing happened within {limit_s:g} s")
        return self.nbytes

    def give_up(self) -> tuple[MPI.Request, torch.Tensor]:
        """End all waits; return what MPI still has of it. MPI cancels receives, but no sends."""
        request, self.request = self.request, None
        assert request is not None
        if isinstance(self, _Receiving):
            with suppress(RuntimeError):
                request.Cancel()
        return request, self.memory

    def _is_done(self) -> bool:
        if self.nbytes is None:
            with calls:
                if self.request is None:
                    raise LinkError(f"{self.what}: {OWN_END}")
                status = self.link.mpi.Status()
                if self.request.Test(status):
                    self.nbytes = status.Get_count(self.link.mpi.BYTE)
                    self.link.finished(self)
        return self.nbytes is not None


class _Sending(_Operation):
    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> None:
        self.settle(timeout_s, keepalive)


class _Receiving(_Operation):
    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> torch.Tensor:
        return self.memory[: self.settle(timeout_s, keepalive)]


_Kind = TypeVar("_Kind", _Sending, _Receiving)


class MpiLink(Link):
    """One process of an MPI job, connected with the other processes of a communicator.

    All of them make their links of one communicator in the same order, together; a link's ranks are the
    communicator's. Frames travel over a duplicate, and so never meet messages of the caller's. Every rank
    closes its link when it is done: the communicator is freed once all have.

    A link serves any thread, one at a time. MPI must allow that (THREAD_SERIALIZED): training exchanges
    gradients in a thread of its own. Whoever makes MPI calls of their own meanwhile needs THREAD_MULTIPLE,
    which is what mpi4py asks for by default.

    Parameters
    ----------
    comm
        An intracommunicator of mpi4py; ``MPI.COMM_WORLD`` where it is None.
    timeout_s
        How long a wait lasts at most while nothing happens, in seconds, unless it says otherwise.

    Raises
    ------
    LinkError
        Where mpi4py or MPI is missing or allows too few threads, for a communicator that no link can have,
        where ranks run different versions of gradwire, and when the other ranks do not come within the
        timeout (``LinkTimeoutError``).
    """

    tos = 0  # MPI opens connections by itself, and lets nobody mark them

    def __init__(self, comm: MPI.Comm | None = None, timeout_s: float = 30.0) -> None:
        self.mpi = load_mpi()
        parent = intracommunicator(self.mpi, comm)
        self.rank, self.world, self.timeout_s = parent.Get_rank(), parent.Get_size(), timeout_s
        self._pending: set[_Operation] = set()  # keeps their memory alive, too, whatever the caller drops
        self._sent, self._received = np.zeros((2, self.world), dtype=np.int64)
        what = f"rank {self.rank} joining the {self.world} ranks of its communicator"
        self._comm: MPI.Comm | None = self._duplicate(parent, what)
        self._keepalives = Keepalives(self.mpi, self._comm)
        try:
            self._compare_versions(self._comm, what)
        except LinkError:
            self.close()
            raise

    def isend(self, to: int, frame: torch.Tensor) -> _Sending:
        """Start sending ``frame`` to the rank ``to``."""
        sending = self._start(_Sending, "Isend", to, frame, f"rank {self.rank} sending to rank {to}")
        self._sent[to] += 1
        return sending

    def irecv(self, source: int, buffer: torch.Tensor) -> _Receiving:
        """Start receiving a frame from the rank ``source`` into ``buffer``; its exact length comes back."""
        what = f"rank {self.rank} receiving from rank {source}"
        return self._start(_Receiving, "Irecv", source, buffer, what)

    def close(self) -> None:
        """Tell the peers, whose waits for this rank end with an error; give up what is under way."""
        with calls:
            comm, self._comm = self._comm, None
            if comm is None or self.mpi.Is_finalized():
                return
            under_way = [operation.give_up() for operation in self._pending]
            self._pending.clear()
            closing.append(
                ClosedLink(self.mpi, comm, under_way, self._sent, self._received, self._keepalives)
            )
            free_communicators()

    def keep_alive(self, timeout_s: float) -> None:
        """Let all ranks know that frames still move here."""
        self._keepalives.activity.moved_at = time.monotonic()
        self.send_keepalives_if_due(timeout_s)

    def send_keepalives_if_due(self, timeout_s: float) -> None:
        """Tell all ranks that frames move here, if some have since they were told."""
        if self._keepalives.activity.is_due(timeout_s):
            with calls, suppress(RuntimeError):  # whom it does not reach has a timeout
                if self._comm is not None:
                    self._keepalives.receive()  # so that those of the others do not pile up
                    self._keepalives.send()

    def active_at(self, timeout_s: float) -> float:
        """Return when a frame last moved, on this rank or on another; tell the others of this rank's."""
        self.send_keepalives_if_due(timeout_s)
        with calls:
            if self._comm is not None:
                self._keepalives.receive()
        return max(self._keepalives.activity.moved_at, self._keepalives.activity.heard_at)

    def has_left(self, peer: int) -> bool:
        """Return whether ``peer`` has closed its link."""
        with calls:
            return self._comm is not None and self._comm.Iprobe(peer, FIN)

    def finished(self, operation: _Operation) -> None:
        """Strike an operation off the list of those under way."""
        self._pending.discard(operation)
        self._keepalives.activity.moved_at = time.monotonic()
        if isinstance(operation, _Receiving):
            self._received[operation.peer] += 1

    def _start(self, kind: type[_Kind], call: str, peer: int, memory: torch.Tensor, what: str) -> _Kind:
        with calls:
            if self._comm is None:
                raise LinkError(f"{what}: {OWN_END}")
            try:
                request = getattr(self._comm, call)([memory.numpy(), self.mpi.BYTE], peer, _FRAME)
            except RuntimeError as error:
                raise LinkError(f"{what}: {reason(error)}") from error
            operation = kind(self, request, memory, peer, what)
            self._pending.add(operation)
            return operation

    def _duplicate(self, parent: MPI.Comm, what: str) -> MPI.Comm:
        try:
            with calls:
                free_communicators()
                comm, request = parent.Idup()
            self._await_all(comm, request, what)
            with calls:
                comm.Set_errhandler(self.mpi.ERRORS_RETURN)
        except RuntimeError as error:
            raise LinkError(f"{what}: {reason(error)}") from error
        return comm

    def _compare_versions(self, comm: MPI.Comm, what: str) -> None:
        own = version().encode()[:_VERSION_NBYTES].ljust(_VERSION_NBYTES)
        every = bytearray(_VERSION_NBYTES * self.world)
        try:
            with calls:
                request = comm.Iallgather([own, self.mpi.BYTE], [every, self.mpi.BYTE])
            self._await_all(comm, request, what)
        except RuntimeError as error:
            raise LinkError(f"{what}: {reason(error)}") from error
        told = [every[at : at + _VERSION_NBYTES].decode() for at in range(0, len(every), _VERSION_NBYTES)]
        names = [self.name_of(rank) for rank in range(self.world)]
        check_same_version(joined(dict(enumerate(map(str.strip, told)))), names, version(), what)

    def _await_all(self, comm: MPI.Comm, request: MPI.Request, what: str) -> None:
        """Wait for what all ranks have to do."""

        def is_done() -> bool:
            with calls:
                return request.Test()

        if not poll(is_done, self.timeout_s):
            _unfinished.append((comm, request))
            raise LinkTimeoutError(f"{what}: nothing happened within {self.timeout_s:g} s")
