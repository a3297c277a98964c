"""How a link over MPI closes: a last message to every peer; a communicator is freed once it is empty.

MPI does not tell who has closed. A link that closes therefore sends every peer a FIN, a message with a tag
of its own that says how many frames and keepalives it has sent to that peer. A communicator whose FINs have
all come, and that holds nothing that nobody received, is freed. Any other one is kept: MPI gives the numbers
of free ones to new ones, whose ranks would then receive what the old ones left behind.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.links.mpi.keepalives import Keepalives

if TYPE_CHECKING:
    from mpi4py import MPI

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
