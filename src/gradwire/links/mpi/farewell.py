"""What a link over MPI leaves behind when it closes: goodbyes, messages under way, the communicator.

MPI does not tell who has left. A link that closes therefore sends a goodbye to every peer, a message with a
tag of its own that says how many frames it has sent to that peer. A communicator whose goodbyes have all
come, and that holds no frame which nobody took, is freed; any other one is kept: MPI gives the numbers of
free ones to new ones, whose ranks would then get what the old ones left behind.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

GOODBYE = 1
"""The goodbyes' tag."""

left_behind: list[Remains] = []


class Remains:
    """What a closed link leaves behind until its peers have closed theirs; one thread at a time calls.

    Parameters
    ----------
    mpi, comm
        The module of mpi4py, and the link's own communicator.
    under_way
        Requests that nobody will wait for, each with the memory that MPI reads or fills meanwhile.
    sent, received
        How many frames went to and came from every rank, of shape (world,).
    """

    def __init__(
        self,
        mpi: Any,
        comm: MPI.Comm,
        under_way: list[tuple[MPI.Request, torch.Tensor]],
        sent: NDArray[np.int64],
        received: NDArray[np.int64],
    ) -> None:
        self._mpi, self._comm, self._under_way, self._sent = mpi, comm, under_way, sent
        self._is_empty = not under_way
        self._awaited = {peer: received[peer] for peer in range(sent.size) if peer != comm.Get_rank()}
        self._goodbyes: list[MPI.Request] = []
        with suppress(RuntimeError):  # whom it does not reach has a timeout
            for peer in self._awaited:
                number = [sent[peer : peer + 1], mpi.INT64_T]
                self._goodbyes.append(comm.Isend(number, peer, GOODBYE))

    def is_settled(self) -> bool:
        """Return whether nothing is left to wait for; the communicator is freed then, if it is empty."""
        self._under_way = [pair for pair in self._under_way if not pair[0].Test()]
        self._goodbyes = [goodbye for goodbye in self._goodbyes if not goodbye.Test()]
        for peer in [peer for peer in self._awaited if self._comm.Iprobe(peer, GOODBYE)]:
            count = np.zeros(1, dtype=np.int64)
            self._comm.Recv([count, self._mpi.INT64_T], peer, GOODBYE)
            self._is_empty &= bool(self._awaited.pop(peer) == count[0])
        if self._under_way or self._goodbyes or self._awaited:
            return False
        if self._is_empty:
            self._comm.Free()  # collective by the standard, but MPICH and Open MPI wait for nobody in it
        return True


def sweep() -> None:
    """Free the communicators of closed links that nobody needs any more; one thread at a time calls."""
    for remains in tuple(left_behind):
        with suppress(RuntimeError):
            if remains.is_settled():
                left_behind.remove(remains)
