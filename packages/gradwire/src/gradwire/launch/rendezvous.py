"""The store through which ranks find each other: the parent's, or the one that ``torchrun`` names.

Both give a ``torch.distributed`` store. The parent's lives in its memory and is reached over the loopback
interface alone: no rendezvous file is left behind, and no other host can read or write.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from time import monotonic, sleep
from typing import cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed import DistNetworkError
from torch.distributed.rendezvous import rendezvous

from gradwire.errors import JobError, LinkError, LinkTimeoutError
from gradwire.launch.launched import launched_rank, whole
from gradwire.launch.store import server_of, within

LOCAL = "127.0.0.1"
SLACK_S = 5.0
"""The time beyond its timeout after which a call of torch is given up."""
MOST_PORT = 65535
_BACKLOG = 128


def open_store(timeout_s: float) -> TCPStore:
    """Return the store of a local job, hosted by this process on a free port of the loopback interface.

    By itself torch listens on all interfaces, where any host that reaches this machine can read and write.
    """
    with socket.create_server((LOCAL, 0), backlog=_BACKLOG) as listening:
        port = int(listening.getsockname()[1])
        limit = timedelta(seconds=timeout_s)
        return TCPStore(
            LOCAL, port, None, True, limit, wait_for_workers=False, master_listen_fd=listening.detach()
        )


def join_store(port: int, timeout_s: float) -> Store:
    """Return a worker's end of the parent's store."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # ranks of one machine, which no other one shall reach
    return TCPStore(LOCAL, port, None, False, timedelta(seconds=timeout_s))


def join_launched(timeout_s: float) -> Store:
    """Return the store at MASTER_ADDR:MASTER_PORT. Raises ``JobError`` within about ``timeout_s``."""
    rank, world = launched_rank()
    host, port = os.environ["MASTER_ADDR"], whole("MASTER_PORT")
    _check_address(host, port)
    if rank > 0:
        _reach(host, port, timeout_s, rank)
    answer = _rendezvous(rank, world, timeout_s)
    if isinstance(answer, Exception):
        if isinstance(answer, DistNetworkError) and rank == 0 and _is_taken(port):
            raise JobError(
                f"rank {rank} cannot listen at {host}:{port}, where another program does; choose another "
                "MASTER_PORT for all ranks"
            ) from answer
        reason = str(answer).splitlines()[0].rstrip(".")
        raise JobError(
            f"rank {rank} of {world} could not meet the others at {host}:{port}: {reason}; check MASTER_ADDR "
            "and MASTER_PORT, and that all ranks were started"
        ) from answer
    return answer


def check_same_options(store: Store, rank: int, options: Mapping[str, object]) -> None:
    """Raise ``JobError`` if this rank was started with other options than rank 0."""
    own = {key: str(value) for key, value in options.items()}
    if rank == 0:
        store.set("options", json.dumps(own))
        return
    first = json.loads(store.get("options"))
    for key, value in own.items():
        if first.get(key) != value:
            raise JobError(
                f"all ranks need the same options, but {key} is {value} on rank {rank} and {first.get(key)} "
                "on rank 0"
            )


def _is_taken(port: int) -> bool:
    """Return whether a port of this machine is taken."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _check_address(host: str, port: int) -> None:
    """Raise ``JobError`` for an address that doesn't exist: torch would log forty lines about it."""
    if not 1 <= port <= MOST_PORT:
        raise JobError(f"MASTER_PORT must be 1 to {MOST_PORT}, but is {port}")
    try:
        socket.getaddrinfo(host, port)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise JobError(
            f"MASTER_ADDR must be rank 0's address or name, but {host!r} is not known here ({reason})"
        ) from error


def _reach(host: str, port: int, timeout_s: float, rank: int) -> None:
    """Try until rank 0 listens: torch would say the same in forty lines, and log each attempt."""
    deadline = monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection((host, port), timeout=max(0.1, deadline - monotonic())):
                return
        except OSError as error:
            if monotonic() + 0.2 > deadline:
                reason = error.strerror or str(error)
                raise JobError(
                    f"rank {rank} cannot reach rank 0 at {host}:{port} within {timeout_s:g} s ({reason}); "
                    "check MASTER_ADDR, MASTER_PORT and the firewall"
                ) from error
            sleep(0.2)


def _rendezvous(rank: int, world: int, timeout_s: float) -> Store | Exception:
    """Return torch's store, or the error, in time: torch waits forever for a silent program."""

    def join() -> Store:
        store, _, _ = next(rendezvous("env://", rank, world, timeout=timedelta(seconds=timeout_s)))
        return cast(Store, store)

    try:
        return within(join, timeout_s + SLACK_S, whole("MASTER_PORT"))
    except TimeoutError:
        return TimeoutError(f"the program that listens there did not answer within {timeout_s:g} s")
    except (RuntimeError, ValueError) as error:
        return error


# The group of all ranks, for messages beside the links.

POLL_S = 0.1
ANSWER_S = 30.0
"""The time that the process that serves the store may take for an answer."""


@contextmanager
def joined_group(store: Store, rank: int, world: int, timeout_s: float) -> Iterator[dist.ProcessGroup]:
    """Join the default group, over Gloo, for a ``with`` block. Raises ``LinkError``."""
    with in_words(f"rank {rank} could not meet the other {world - 1} ranks", timeout_s):
        limit = timedelta(seconds=timeout_s)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    try:
        yield dist.group.WORLD  # type: ignore[misc]
    finally:
        dist.destroy_process_group()


def gather(group: dist.ProcessGroup, values: torch.Tensor) -> torch.Tensor:
    """Return every rank's ``values`` (1-D, equal lengths), one row a rank; raises torch's errors."""
    rows = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, values, group=group)
    return torch.stack(rows)


def wait_for(store: Store, key: str) -> None:
    """Sleep until a rank sets ``key``, without a limit, because a measurement has none.

    If the host of the store fails meanwhile, raises torch's error; ``LinkTimeoutError`` if the store is
    silent.
    """
    port, place = server_of(store)
    try:
        while not within(partial(store.check, [key]), ANSWER_S, port):
            sleep(POLL_S)
    except TimeoutError as error:
        raise LinkTimeoutError(
            f"{place} has not answered for {ANSWER_S:g} s (asked for {key!r}); is the process that serves "
            "it stopped, or its host cut off?"
        ) from error


@contextmanager
def in_words(doing: str, timeout_s: float) -> Iterator[None]:
    """Turn a RuntimeError of torch.distributed, of many lines, into a ``LinkError`` of one."""
    started = monotonic()
    try:
        yield
    except RuntimeError as error:
        late = monotonic() - started >= timeout_s * 0.9
        reason = f"nothing within {timeout_s:g} s" if late else str(error).splitlines()[0]
        raise LinkError(f"{doing}, but a peer is gone or too slow: {reason}") from error
