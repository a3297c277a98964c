"""How links call MPI: started with the first link, called by one thread at a time, never waited in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.errors import LinkError
from gradwire.links.base import SIGNS, Activity
from gradwire.version import how_to_install

if TYPE_CHECKING:
    from mpi4py import MPI


_LONGEST_PAUSE_S = 1e-3

calls = threading.Lock()
"""Held in every call into MPI, so that links in several threads need no more than THREAD_SERIALIZED."""


def poll(is_done: Callable[[], bool], timeout_s: float, active_at: Callable[[], float] | None = None) -> bool:
    """Return whether ``is_done`` came true before nothing had happened for ``timeout_s``.

    It is asked often at first, and every millisecond later. ``active_at`` returns when something else last
    happened, as ``time.monotonic`` tells it; it is asked a few times within the timeout.
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
    """Return MPI's own words without the list of its calls, which MPICH puts behind them."""
    return str(error).partition(", error stack")[0].partition("\n")[0]


def load_mpi() -> Any:
    """Import mpi4py, which starts MPI, and see that it is fit for a link. Raises ``LinkError``."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # no mpi4py, or no library behind it
        raise LinkError(
            f"a link over MPI needs mpi4py and an MPI library, but {reason(error)}; "
            f"{how_to_install('mpi')}, and pip install mpich where the machine has no MPI of its own"
        ) from error
    if MPI.Is_finalized():
        raise LinkError("a link over MPI needs a running MPI, but MPI_Finalize has been called")
    level = MPI.Query_thread()
    if level < MPI.THREAD_SERIALIZED:
        had = "THREAD_SINGLE" if level == MPI.THREAD_SINGLE else "THREAD_FUNNELED"
        raise LinkError(
            "a link over MPI needs THREAD_SERIALIZED or more, since training exchanges in a thread of its "
            f"own, but MPI was started with {had}; set mpi4py.rc.thread_level = 'multiple' before mpi4py.MPI "
            "is first imported"
        )
    return MPI


def intracommunicator(mpi: Any, comm: Any) -> Any:
    """Return ``comm``, or ``COMM_WORLD`` for None. Raises ``LinkError`` where no link can have its ranks."""
    parent = mpi.COMM_WORLD if comm is None else comm
    if parent == mpi.COMM_NULL or parent.Is_inter():
        raise LinkError(
            "a link over MPI needs an intracommunicator that this process belongs to, such as COMM_WORLD"
        )
    return parent


# The keepalives of a link over MPI: empty messages with a tag of their own, which are counted.
#
# Their numbers tell, when the link closes, whether its communicator still holds one.

_TAG = 2


class Keepalives:
    """What one link sends and receives of them, and when frames moved last; one thread at a time calls.

    ``activity`` is that of all ranks, as far as this one knows. ``sent`` and ``received``, of shape (world,),
    count those that went to and came from every rank.
    """

    def __init__(self, mpi: Any, comm: MPI.Comm) -> None:
        self.activity = Activity()
        self.sent, self.received = np.zeros((2, comm.Get_size()), dtype=np.int64)
        self._mpi, self._comm = mpi, comm
        self._leaving: dict[int, MPI.Request] = {}

    def send(self) -> None:
        """Send one to every rank to which the one before has left."""
        for peer in range(self.sent.size):
            if peer != self._comm.Get_rank() and not self.is_leaving(peer):
                self._leaving[peer] = self._comm.Isend([None, 0, self._mpi.BYTE], peer, _TAG)
                self.sent[peer] += 1

    def receive(self) -> None:
        """Take what has come."""
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, _TAG, status):
            self._comm.Recv([None, 0, self._mpi.BYTE], status.Get_source(), _TAG)
            self.received[status.Get_source()] += 1
            self.activity.heard_at = time.monotonic()

    def is_leaving(self, peer: int) -> bool:
        """Return whether the last one to ``peer`` is still under way."""
        return peer in self._leaving and not self._leaving[peer].Test()


# How a link over MPI closes: a last message to every peer; a communicator is freed once it is empty.
#
# MPI does not tell who has closed. A link that closes therefore sends every peer a FIN, a message with a
# tag
# of its own that says how many frames and keepalives it has sent to that peer. A communicator whose FINs
# have
# all come, and that holds nothing that nobody received, is freed. Any other one is kept: MPI gives the
# numbers
# of free ones to new ones, whose ranks would then receive what the old ones left behind.

FIN = 1
"""The tag of the last message."""

closing: list[ClosedLink] = []


class ClosedLink:
    """What is left of a closed link until its peers have closed theirs; one thread at a time calls.

    ``under_way`` are requests that nobody will wait for, each with the memory that MPI reads or fills
    meanwhile. ``sent`` and ``received``, of shape (world,), count the frames to and from every rank.
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
        with suppress(RuntimeError):  # whom it does not reach has a timeout
            for peer in self._awaited:
                self._fins.append(comm.Isend([self._counts[peer], mpi.INT64_T], peer, FIN))

    def is_settled(self) -> bool:
        """Return whether nothing is left to wait for; the communicator is freed then, if it is empty."""
        self._under_way = [pair for pair in self._under_way if not pair[0].Test()]
        self._fins = [fin for fin in self._fins if not fin.Test()]
        self._keepalives.receive()
        for peer in [peer for peer in self._awaited if self._comm.Iprobe(peer, FIN)]:
            counts = np.zeros(2, dtype=np.int64)
            self._comm.Recv([counts, self._mpi.INT64_T], peer, FIN)
            self._awaited.remove(peer)
            self._keepalives.receive()  # what came before the FIN
            came = (self._received[peer], self._keepalives.received[peer])
            self._is_empty &= bool((counts == came).all()) and not self._keepalives.is_leaving(peer)
        if self._under_way or self._fins or self._awaited:
            return False
        if self._is_empty:
            self._comm.Free()  # collective by the standard, but MPICH and Open MPI wait for nobody in it
        return True


def free_communicators() -> None:
    """Free those of closed links that nobody needs any more; one thread at a time calls."""
    for link in tuple(closing):
        with suppress(RuntimeError):
            if link.is_settled():
                closing.remove(link)
