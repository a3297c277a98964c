"""What a frame costs a host, when nobody has measured it between the hosts: two ends of Gloo in this process.

The frames are those of an exchange, over a local connection, and so are the costs of this machine's
processor and of Gloo. Local packets are large: a network card without offloads takes more for every byte (two
to four times as much between namespaces, measured). Measuring takes some tenths of a second and starts no
process.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from statistics import median
from threading import Barrier
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store

from gradwire.errors import LinkError
from gradwire.exchange import Exchange
from gradwire.links.base import Link, Receiving, Sending
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.timing.calibrate import identity_cost
from gradwire.timing.host import FRAMES, LARGE_NBYTES, SMALL_NBYTES, EndCost, FrameCost, HostCost, both_ends

_ROUNDS = 9
_TIMEOUT_S = 20.0
_LOCAL = "lo"


def measure_host(cores: int, ranks_per_machine: int) -> HostCost:
    """Return the costs of a frame on this machine. Raises ``LinkError`` where it has no local network."""
    try:
        small, large = _measure()
    except RuntimeError as error:
        raise LinkError(
            f"the cost of frames cannot be measured over the local network ({str(error).splitlines()[0]}); "
            "give one that was measured, or bring the interface 'lo' up"
        ) from error
    identity = identity_cost()
    sender = EndCost.fit(small.sender, large.sender, identity.encode_s / FLOAT_NBYTES)
    receiver = EndCost.fit(small.receiver, large.receiver, identity.decode_add_s / FLOAT_NBYTES)
    return both_ends(sender, receiver, cores, ranks_per_machine)


class _Spent(NamedTuple):
    """What one frame costs at either end."""

    sender: FrameCost
    receiver: FrameCost


class _GlooEnd(Link):
    """One of two ranks that are threads of this process, over a connection of Gloo."""

    def __init__(self, store: Store, rank: int) -> None:
        self.rank, self.world, self.timeout_s = rank, 2, _TIMEOUT_S
        gloo: Any = dist.ProcessGroupGloo  # torch types half of what it has
        options = gloo._Options()
        options._devices = [gloo.create_device(interface=_LOCAL)]
        options._timeout = timedelta(seconds=_TIMEOUT_S)
        self._gloo = gloo(store, rank, 2, options)

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        """Start sending."""
        return _Sending(self._gloo.send([frame], to, 0), frame)

    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        """Start receiving."""
        return _Receiving(self._gloo.recv([buffer], source, 0), buffer)

    def close(self) -> None:
        """Close the connection."""
        self._gloo = None


class _Sending(NamedTuple):
    work: dist.Work
    frame: torch.Tensor

    def wait(self) -> None:
        self.work.wait()


class _Receiving(NamedTuple):
    work: dist.Work
    frame: torch.Tensor

    def wait(self) -> torch.Tensor:
        self.work.wait()
        return self.frame


def _measure() -> tuple[_Spent, _Spent]:
    """Return what small and large frames cost: medians over several rounds."""
    store, barrier = HashStore(), Barrier(2, timeout=_TIMEOUT_S)
    with ThreadPoolExecutor(2) as pool:
        receiver, sender = pool.map(lambda rank: _run(store, barrier, rank), (0, 1))
    found = []
    for received, sent in zip(receiver, sender, strict=True):
        beside_s = median(
            max(0.0, into.process_s - out.thread_s - into.thread_s)
            for into, out in zip(received, sent, strict=True)
        )
        found.append(
            _Spent(
                *(
                    FrameCost(median(each.thread_s for each in end) / FRAMES, beside_s / 2 / FRAMES)
                    for end in (sent, received)
                )
            )
        )
    small, large = found
    return small, large


class _Clocks(NamedTuple):
    thread_s: float
    process_s: float


def _run(store: Store, barrier: Barrier, rank: int) -> list[list[_Clocks]]:
    """Be rank 1, which sends, or rank 0, which receives; return the processor times of all rounds."""
    link = _GlooEnd(store, rank)
    try:
        return [_rounds(link, barrier, nbytes) for nbytes in (SMALL_NBYTES, LARGE_NBYTES)]
    finally:
        barrier.wait()
        link.close()


def _rounds(link: Link, barrier: Barrier, nbytes: int) -> list[_Clocks]:
    exchange = Exchange(link, Plan(algorithm="star", segment_nbytes=nbytes))
    bucket = torch.zeros(FRAMES * nbytes // FLOAT_NBYTES)
    exchange.reduce(bucket)  # the first one makes the buffers
    clocks = []
    for _ in range(_ROUNDS):
        barrier.wait()
        thread_s, process_s = time.thread_time(), time.process_time()
        exchange.reduce(bucket)
        thread_s = time.thread_time() - thread_s
        barrier.wait()
        clocks.append(_Clocks(thread_s, time.process_time() - process_s))
    return clocks
