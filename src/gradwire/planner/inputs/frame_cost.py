"""Measure the cost of a frame on this machine, with two ends of a link in this process.

This replaces a measurement between hosts if there is none. The frames are those of an exchange over a local
connection. Local packets are large: a network card without offloads costs more for every byte (two
to four times as much between namespaces, measured). Measuring takes some tenths of a second and starts no
process.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean, median
from threading import Barrier
from typing import NamedTuple

import torch

from gradwire.errors import LinkError
from gradwire.exchange import Exchange
from gradwire.links.base import Link
from gradwire.links.sockets import SocketLink
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.timing.measure.calibrate import identity_cost
from gradwire.timing.measure.repeats import disagreement
from gradwire.timing.replay.host import (
    FRAMES,
    LARGE_NBYTES,
    SMALL_NBYTES,
    EndCost,
    FrameCost,
    HostCost,
    both_ends,
)

_ROUNDS = 9
_TIMEOUT_S = 20.0
_LOCAL = "127.0.0.1"


def measure_host(cores: int, ranks_per_machine: int, rounds: int = _ROUNDS) -> HostCost:
    """Return the costs of a frame on this machine, medians of so many rounds.

    Raises ``LinkError`` if it has no local network.
    """
    try:
        small, large, disagrees = _measure(rounds)
    except OSError as error:
        raise LinkError(
            f"the cost of frames cannot be measured over the local network ({error.strerror or error}); "
            "give one that was measured, or bring the interface 'lo' up"
        ) from error
    identity = identity_cost(rounds)
    sender = EndCost.fit(small.sender, large.sender, identity.encode_s / FLOAT_NBYTES)
    receiver = EndCost.fit(small.receiver, large.receiver, identity.decode_add_s / FLOAT_NBYTES)
    return replace(both_ends(sender, receiver, cores, ranks_per_machine), disagreement=disagrees)


class _Spent(NamedTuple):
    """The cost of one frame at either end."""

    sender: FrameCost
    receiver: FrameCost


def _measure(rounds: int) -> tuple[_Spent, _Spent, float]:
    """Return the costs of small and large frames, as medians over several rounds, and their spread."""
    barrier = Barrier(2, timeout=_TIMEOUT_S)
    with ThreadPoolExecutor(2) as pool, local_pair() as ends:
        receiver, sender = pool.map(lambda rank: _run(ends[rank], barrier, rounds), (0, 1))
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
    every = [clocks for end in (receiver, sender) for clocks in end]
    return small, large, fmean(disagreement([each.thread_s for each in clocks]) for clocks in every)


class _Clocks(NamedTuple):
    thread_s: float
    process_s: float


@contextmanager
def local_pair() -> Iterator[tuple[SocketLink, SocketLink]]:
    """Yield the two ends of a link over the local network."""
    with socket.create_server((_LOCAL, 0)) as listening:
        called = socket.create_connection(listening.getsockname(), timeout=_TIMEOUT_S)
        answered = listening.accept()[0]
    for each in (called, answered):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.setblocking(False)
    ends = SocketLink(0, {1: answered}, _TIMEOUT_S), SocketLink(1, {0: called}, _TIMEOUT_S)
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


def _run(link: Link, barrier: Barrier, rounds: int) -> list[list[_Clocks]]:
    """Be rank 1, which sends, or rank 0, which receives; return the processor times of all rounds."""
    return [_clocks_of(link, barrier, nbytes, rounds) for nbytes in (SMALL_NBYTES, LARGE_NBYTES)]


def _clocks_of(link: Link, barrier: Barrier, nbytes: int, rounds: int) -> list[_Clocks]:
    exchange = Exchange(link, Plan(algorithm="star", segment_nbytes=nbytes))
    bucket = torch.zeros(FRAMES * nbytes // FLOAT_NBYTES)
    exchange.reduce(bucket)  # the first one makes the buffers
    clocks = []
    for _ in range(rounds):
        barrier.wait()
        thread_s, process_s = time.thread_time(), time.process_time()
        exchange.reduce(bucket)
        thread_s = time.thread_time() - thread_s
        barrier.wait()
        clocks.append(_Clocks(thread_s, time.process_time() - process_s))
    return clocks
