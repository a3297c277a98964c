"""The keepalives of a link over MPI: empty messages with a tag of their own, which are counted.

Their numbers tell, when the link closes, whether its communicator still holds one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwire.links.keepalive import Activity

if TYPE_CHECKING:
    from mpi4py import MPI

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
