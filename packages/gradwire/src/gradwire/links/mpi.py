"""Ranks as MPI processes, with frames sent over the link's own communicator through mpi4py.

MPI makes progress only within its calls, and its waits have no timeout. Therefore, a link polls: it tests
whether a message is complete, sleeps briefly, and tests again. A link also tests whether the peer has closed
its link (``ClosedLink``), which ends a wait with an error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.errors import LinkError, LinkTimeoutError, no_progress
from gradwire.links.base import OWN_END, SIGNS, Activity, Link
from gradwire.links.rendezvous.attempt import check_same_version, joined
from gradwire.version import how_to_install, version

if TYPE_CHECKING:
    from mpi4py import MPI

_FRAME, FIN, _KEEPALIVE = 0, 1, 2
"""The tags of frames, of a link's last message to a peer, and of keepalives."""
_LONGEST_PAUSE_S = 1e-3
_VERSION_NBYTES = 64  # ASCII, padded with spaces
_GRACE_S = 0.1  # a FIN may overtake the end of a large frame
_unfinished: list[tuple[MPI.Comm, MPI.Request]] = []  # requests whose memory MPI may still write to
closing: list[ClosedLink] = []
calls = threading.Lock()
"""The lock held during every MPI call, so that links in several threads need only THREAD_SERIALIZED."""


def poll(is_done: Callable[[], bool], timeout_s: float, active_at: Callable[[], float] | None = None) -> bool:
    """Poll ``is_done``, often at first; return whether it became true before ``timeout_s`` of inactivity.

    ``active_at``, called a few times per timeout, returns the time (``time.monotonic``) of other activity.
    """
    last, pause_s = time.monotonic(), 0.0
    looks_at = last + timeout_s / SIGNS
    while not is_done():
        now = time.monotonic()
        if active_at is not None and now >= looks_at:
            last, looks_at = max(last, active_at()), now + timeout_s / SIGNS
        if now >= last + timeout_s:
            return False
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s + 5e-6, _LONGEST_PAUSE_S)
    return True


def reason(error: Exception) -> str:
    """Return MPI's error text without the stack of calls that MPICH appends."""
    return str(error).partition(", error stack")[0].partition("\n")[0]


def load_mpi() -> Any:
    """Import mpi4py, which starts MPI, and check that links can use it. Raises ``LinkError``."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # no mpi4py, or no MPI library
        raise LinkError(
            f"a link over MPI needs mpi4py and an MPI library, got an error ({reason(error)}); "
            f"{how_to_install('mpi')}, and pip install mpich if the machine has no MPI"
        ) from error
    if MPI.Is_finalized():
        raise LinkError(
            "expected MPI to be running for a link, got a call after MPI_Finalize; create the link earlier"
        )
    level = MPI.Query_thread()
    if level < MPI.THREAD_SERIALIZED:
        had = "THREAD_SINGLE" if level == MPI.THREAD_SINGLE else "THREAD_FUNNELED"
        raise LinkError(
            f"expected MPI with THREAD_SERIALIZED or THREAD_MULTIPLE, got {had}; set "
            "mpi4py.rc.thread_level = 'multiple' before the first import of mpi4py.MPI"
        )
    return MPI


def intracommunicator(mpi: Any, comm: Any) -> Any:
    """Return ``comm``, or ``COMM_WORLD`` for None. Raises ``LinkError`` unless it is an intracommunicator."""
    parent = mpi.COMM_WORLD if comm is None else comm
    if parent == mpi.COMM_NULL or parent.Is_inter():
        got = "MPI.COMM_NULL" if parent == mpi.COMM_NULL else "an intercommunicator"
        raise LinkError(
            f"MpiLink: expected an intracommunicator with this process, got {got}; pass MPI.COMM_WORLD"
        )
    return parent


class Keepalives:
    """The keepalives of one link, sent as empty messages with their own tag. Not thread-safe.

    ``sent`` and ``received``, of shape (world,), count keepalives to and from every rank, so that a closed
    link knows whether its communicator still holds one. ``activity`` is the known activity of all ranks.
    """

    def __init__(self, mpi: Any, comm: MPI.Comm) -> None:
        self.activity = Activity()
        self.sent, self.received = np.zeros((2, comm.Get_size()), dtype=np.int64)
        self._mpi, self._comm = mpi, comm
        self._leaving: dict[int, MPI.Request] = {}

    def send(self) -> None:
        """Send a keepalive to every rank to which no earlier keepalive is in flight."""
        for peer in range(self.sent.size):
            if peer != self._comm.Get_rank() and not self.is_leaving(peer):
                self._leaving[peer] = self._comm.Isend([None, 0, self._mpi.BYTE], peer, _KEEPALIVE)
                self.sent[peer] += 1

    def receive(self) -> None:
        """Receive all keepalives that have arrived."""
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, _KEEPALIVE, status):
            self._comm.Recv([None, 0, self._mpi.BYTE], status.Get_source(), _KEEPALIVE)
            self.received[status.Get_source()] += 1
            self.activity.heard_at = time.monotonic()

    def is_leaving(self, peer: int) -> bool:
        """Return whether the last keepalive to ``peer`` is still being sent."""
        return peer in self._leaving and not self._leaving[peer].Test()


class ClosedLink:
    """The communicator of a closed link, kept until its peers have closed their links. Not thread-safe.

    MPI does not report a closed link. Therefore, a link that closes sends every peer a FIN, with the numbers
    of frames and keepalives that it has sent to that peer. A communicator is freed if all its FINs have
    arrived and it holds no message. Otherwise, the communicator is kept: MPI reuses the numbers of freed
    communicators for new communicators, whose ranks would then receive the old messages.

    ``under_way`` lists the unfinished requests, each with the memory that MPI reads or fills. ``sent`` and
    ``received``, of shape (world,), count the frames to and from every rank.
    """

    def __init__(
        self,
        mpi: Any,
        comm: MPI.Comm,
        under_way: list[tuple[MPI.Request, torch.Tensor]],
        sent: NDArray[np.int64],
        received: NDArray[np.int64],
        keepalives: Keepalives,
    ) -> None:
        self._mpi, self._comm, self._under_way, self._received = mpi, comm, under_way, received
        self._keepalives = keepalives
        self._is_empty = not under_way
        self._awaited = {peer for peer in range(sent.size) if peer != comm.Get_rank()}
        self._counts = np.stack((sent, keepalives.sent), axis=1)
        self._fins: list[MPI.Request] = []
        for peer in self._awaited:
            with suppress(RuntimeError):  # a peer that gets no FIN has a timeout
                self._fins.append(comm.Isend([self._counts[peer], mpi.INT64_T], peer, FIN))

    def is_settled(self) -> bool:
        """Return whether all requests and FINs are complete. If so, free the communicator if it is empty."""
        self._under_way = [pair for pair in self._under_way if not pair[0].Test()]
        self._fins = [fin for fin in self._fins if not fin.Test()]
        self._keepalives.receive()
        for peer in [peer for peer in self._awaited if self._comm.Iprobe(peer, FIN)]:
            counts = np.zeros(2, dtype=np.int64)
            self._comm.Recv([counts, self._mpi.INT64_T], peer, FIN)
            self._awaited.remove(peer)
            self._keepalives.receive()  # the keepalives sent before the FIN
            received = (self._received[peer], self._keepalives.received[peer])
            self._is_empty &= bool((counts == received).all()) and not self._keepalives.is_leaving(peer)
        if self._under_way or self._fins or self._awaited:
            return False
        if self._is_empty:
            self._comm.Free()  # collective in the standard, but doesn't block in MPICH and Open MPI
        return True


def free_communicators() -> None:
    """Free the communicators of links that every rank has closed. Not thread-safe."""
    for link in tuple(closing):
        with suppress(RuntimeError):
            if link.is_settled():
                closing.remove(link)


class _Message:
    """A send or receive in flight."""

    def __init__(
        self, link: MpiLink, request: MPI.Request, memory: torch.Tensor, peer: int, what: str, receives: bool
    ) -> None:
        self.link, self.memory, self.peer, self.what, self.receives = link, memory, peer, what, receives
        self.request: MPI.Request | None = request
        self.nbytes: int | None = None

    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> torch.Tensor:
        """Wait until the frame is sent or received, and return it. Raises ``LinkError``."""
        link, limit_s = self.link, self.link.timeout_s if timeout_s is None else timeout_s
        active_at = partial(link.active_at, limit_s) if keepalive else None
        try:
            if keepalive:
                link.send_keepalives_if_due(limit_s)
            in_time = poll(lambda: self._is_done() or link.has_left(self.peer), limit_s, active_at)
            if in_time and not poll(self._is_done, _GRACE_S):
                raise LinkError(f"{self.what}: {link.name_of(self.peer)} has closed its link")
        except RuntimeError as error:  # mpi4py's exceptions are RuntimeErrors
            raise LinkError(f"{self.what}: {reason(error)}") from error
        if self.nbytes is None:
            raise LinkTimeoutError(f"{self.what}: {no_progress(limit_s)}")
        return self.memory[: self.nbytes]

    def give_up(self) -> tuple[MPI.Request, torch.Tensor]:
        """Fail all waits, and return the request and its memory: MPI can't cancel a send."""
        request, self.request = self.request, None
        assert request is not None
        if self.receives:
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


class MpiLink(Link):
    """A link between the processes of an MPI communicator.

    All processes create their links of one communicator together, in the same order. A link's ranks are the
    communicator's ranks. Frames are sent over a duplicate of the communicator, so they never mix with the
    caller's messages. Every rank closes its link when it has finished. The duplicate is freed once all ranks
    have closed their links.

    Any thread may use a link, one at a time. MPI must allow calls from several threads (THREAD_SERIALIZED),
    because training exchanges gradients in a communication thread. A program that makes its own MPI calls
    meanwhile needs THREAD_MULTIPLE, which mpi4py requests by default.

    Parameters
    ----------
    comm
        An intracommunicator of mpi4py; ``MPI.COMM_WORLD`` for None.
    timeout_s
        The default timeout of waits without progress.

    Raises
    ------
    LinkError
        If mpi4py or MPI is missing or its thread level is too low, if the communicator is invalid, if ranks
        run different versions of gradwire, or if the other ranks do not join within the timeout
        (``LinkTimeoutError``).
    """

    tos = 0  # MPI opens the connections, and has no call to mark them

    def __init__(self, comm: MPI.Comm | None = None, timeout_s: float = 30.0) -> None:
        self.mpi = load_mpi()
        parent = intracommunicator(self.mpi, comm)
        self.rank, self.world, self.timeout_s = parent.Get_rank(), parent.Get_size(), timeout_s
        self._pending: set[_Message] = set()  # keeps messages' memory alive if the caller drops them
        self._sent, self._received = np.zeros((2, self.world), dtype=np.int64)
        what = f"rank {self.rank} joining the {self.world} ranks of its communicator"
        self._comm: MPI.Comm | None = self._duplicate(parent, what)
        self._keepalives = Keepalives(self.mpi, self._comm)
        try:
            self._compare_versions(self._comm, what)
        except LinkError:
            self.close()
            raise

    def isend(self, to: int, frame: torch.Tensor) -> _Message:
        """Start to send ``frame`` to the rank ``to``."""
        sending = self._start(to, frame, f"rank {self.rank} sending to rank {to}")
        self._sent[to] += 1
        return sending

    def irecv(self, source: int, buffer: torch.Tensor) -> _Message:
        """Start to receive a frame from the rank ``source`` into ``buffer``."""
        return self._start(source, buffer, f"rank {self.rank} receiving from rank {source}", receives=True)

    def close(self) -> None:
        """Send every peer a FIN, which ends the peer's waits for this rank, and fail this rank's waits."""
        with calls:
            comm, self._comm = self._comm, None
            if comm is None or self.mpi.Is_finalized():
                return
            under_way = [message.give_up() for message in self._pending]
            self._pending.clear()
            closing.append(
                ClosedLink(self.mpi, comm, under_way, self._sent, self._received, self._keepalives)
            )
            free_communicators()

    def keep_alive(self, timeout_s: float) -> None:
        """Report to all ranks that frames are still moving on this rank."""
        self._keepalives.activity.moved_at = time.monotonic()
        self.send_keepalives_if_due(timeout_s)

    def send_keepalives_if_due(self, timeout_s: float) -> None:
        """Send keepalives to all ranks if frames have moved on this rank since the last keepalives."""
        if self._keepalives.activity.is_due(timeout_s):
            with calls, suppress(RuntimeError):  # a peer that gets no keepalive has a timeout
                if self._comm is not None:
                    self._keepalives.receive()  # so that received keepalives don't accumulate
                    self._keepalives.send()

    def active_at(self, timeout_s: float) -> float:
        """Send keepalives if due, and return the time of the last frame moved on any rank."""
        self.send_keepalives_if_due(timeout_s)
        with calls:
            if self._comm is not None:
                self._keepalives.receive()
        return max(self._keepalives.activity.moved_at, self._keepalives.activity.heard_at)

    def has_left(self, peer: int) -> bool:
        """Return whether ``peer`` has closed its link."""
        with calls:
            return self._comm is not None and self._comm.Iprobe(peer, FIN)

    def finished(self, message: _Message) -> None:
        """Remove a message from the pending messages, and count it if received."""
        self._pending.discard(message)
        self._keepalives.activity.moved_at = time.monotonic()
        self._received[message.peer] += message.receives

    def _start(self, peer: int, memory: torch.Tensor, what: str, *, receives: bool = False) -> _Message:
        with calls:
            if self._comm is None:
                raise LinkError(f"{what}: {OWN_END}")
            call = self._comm.Irecv if receives else self._comm.Isend
            try:
                request = call([memory.numpy(), self.mpi.BYTE], peer, _FRAME)
            except RuntimeError as error:
                raise LinkError(f"{what}: {reason(error)}") from error
            message = _Message(self, request, memory, peer, what, receives)
            self._pending.add(message)
            return message

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
        versions = [every[at : at + _VERSION_NBYTES].decode() for at in range(0, len(every), _VERSION_NBYTES)]
        names = [self.name_of(rank) for rank in range(self.world)]
        check_same_version(joined(dict(enumerate(map(str.strip, versions)))), names, version(), what)

    def _await_all(self, comm: MPI.Comm, request: MPI.Request, what: str) -> None:
        """Wait for a collective call of all ranks."""

        def is_done() -> bool:
            with calls:
                return request.Test()

        if not poll(is_done, self.timeout_s):
            _unfinished.append((comm, request))
            raise LinkTimeoutError(f"{what}: {no_progress(self.timeout_s)}")
