"""The rendezvous store of a job: the parent process's store, or the store at ``torchrun``'s address.

Both are ``torch.distributed`` stores. The parent's store is in memory and listens only on the loopback
interface: there is no rendezvous file, and no other host can read or write the store.
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
from gradwire.launch.addresses import with_port
from gradwire.launch.launched import launched_rank, whole
from gradwire.launch.listening import direct_gloo
from gradwire.launch.store import TimedStore, server_of, within

LOCAL = "127.0.0.1"
SLACK_S = 5.0
"""The seconds after torch's own timeout until a call of torch is abandoned."""
MOST_PORT = 65535
_BACKLOG = 128
POLL_S = 0.1
ANSWER_S = 30.0
"""The timeout, in seconds, for an answer from the process that serves the store."""


def open_store(timeout_s: float) -> TCPStore:
    """Return the store of a local job, on a free port of the loopback interface.

    torch would listen on all interfaces, so that every host that reaches the port could read and write the
    store.
    """
    with socket.create_server((LOCAL, 0), backlog=_BACKLOG) as listening:
        port = int(listening.getsockname()[1])
        limit = timedelta(seconds=timeout_s)
        return TCPStore(
            LOCAL, port, None, True, limit, wait_for_workers=False, master_listen_fd=listening.detach()
        )


def join_store(port: int, timeout_s: float) -> Store:
    """Return a client of the local job's store, which the parent process hosts on ``port``."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # other machines must not reach these ranks
    return TCPStore(LOCAL, port, None, False, timedelta(seconds=timeout_s))


def join_launched(timeout_s: float) -> Store:
    """Return a launched job's store, at MASTER_ADDR:MASTER_PORT. Raises ``JobError``."""
    rank, world = launched_rank()
    host, port = os.environ["MASTER_ADDR"], whole("MASTER_PORT")
    place = with_port(host, port)
    _check_address(host, port)
    if rank > 0:
        _reach(host, port, timeout_s, rank)

    def join() -> Store:
        store, _, _ = next(rendezvous("env://", rank, world, timeout=timedelta(seconds=timeout_s)))
        return cast(Store, store)

    try:  # torch itself waits forever for a program that listens but does not answer
        return within(join, timeout_s + SLACK_S, port)
    except (RuntimeError, ValueError, TimeoutError) as error:
        if isinstance(error, DistNetworkError) and rank == 0 and _is_taken(port):
            raise JobError(
                f"rank {rank} cannot listen at {place}, which another program uses; choose another "
                "MASTER_PORT for all ranks"
            ) from error
        reason = str(error).splitlines()[0].rstrip(".")
        if isinstance(error, TimeoutError):
            reason = f"the program at this port did not answer within {timeout_s:g} s"
        raise JobError(
            f"rank {rank} of {world} could not join the other ranks at {place}: {reason}; start "
            "all ranks with the same MASTER_ADDR and MASTER_PORT"
        ) from error


def check_same_options(store: Store, rank: int, options: Mapping[str, object], timeout_s: float) -> None:
    """Raise ``JobError`` if this rank's options differ from rank 0's, ``LinkError`` without rank 0's."""
    own = {key: str(value) for key, value in options.items()}
    doing = f"rank {rank} could not compare its options with rank 0's"
    timed, deadline = TimedStore(store, doing), monotonic() + timeout_s
    if rank == 0:
        timed.set("options", json.dumps(own), deadline)
        return
    with in_words(doing, timeout_s):
        first = json.loads(timed.get(["options"], deadline)[0])
    for key, value in own.items():
        if first.get(key) != value:
            raise JobError(
                f"expected the same options on all ranks, got {key}={value} on rank {rank} and "
                f"{key}={first.get(key)} on rank 0; start all ranks with the same options"
            )


def _is_taken(port: int) -> bool:
    """Return whether another program listens on a port of this machine."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _check_address(host: str, port: int) -> None:
    """Raise ``JobError`` for an invalid store address, because torch would log forty lines."""
    if not 1 <= port <= MOST_PORT:
        raise JobError(
            f"MASTER_PORT: expected 1 to {MOST_PORT}, got {port}; set MASTER_PORT to rank 0's port"
        )
    try:
        socket.getaddrinfo(host, port)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise JobError(
            f"MASTER_ADDR: expected rank 0's address or name, got {host!r}, which this machine cannot "
            f"resolve ({reason}); set MASTER_ADDR to the address of rank 0's host"
        ) from error


def _reach(host: str, port: int, timeout_s: float, rank: int) -> None:
    """Wait until rank 0 listens. Raises ``JobError``. torch would log forty lines for each attempt."""
    deadline = monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection((host, port), timeout=max(0.1, deadline - monotonic())):
                return
        except OSError as error:
            if monotonic() + 0.2 > deadline:
                reason = error.strerror or str(error)
                raise JobError(
                    f"rank {rank} cannot reach rank 0 at {with_port(host, port)} within {timeout_s:g} s "
                    f"({reason}); set MASTER_ADDR and MASTER_PORT to rank 0's, and allow this port in its "
                    "host's firewall"
                ) from error
            sleep(0.2)


@contextmanager
def joined_group(store: Store, rank: int, world: int, timeout_s: float) -> Iterator[dist.ProcessGroup]:
    """Yield the default process group, over Gloo, and destroy it after the block. Raises ``LinkError``."""
    doing = f"rank {rank} could not join the other {world - 1} ranks"
    with in_words(doing, timeout_s):
        direct_gloo(store, rank, world, doing, timeout_s)
        limit = timedelta(seconds=timeout_s)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    try:
        yield dist.group.WORLD  # type: ignore[misc]
    finally:
        dist.destroy_process_group()


def gather(group: dist.ProcessGroup, values: torch.Tensor) -> torch.Tensor:
    """Gather every rank's ``values`` (1-D, equal lengths) as the rows of a tensor. Raises torch's errors."""
    rows = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, values, group=group)
    return torch.stack(rows)


def wait_for(store: Store, key: str, failure: str = "") -> None:
    """Block until a rank sets ``key``, without a limit: a measurement may take arbitrarily long.

    Raises ``LinkError`` if a rank has set the key ``failure`` to a message, or the store doesn't answer.
    """
    port, place = server_of(store)
    try:
        while not within(partial(store.check, [key]), ANSWER_S, port):
            if failure and within(partial(store.check, [failure]), ANSWER_S, port):
                raise LinkError(store.get(failure).decode())
            sleep(POLL_S)
    except TimeoutError as error:
        raise LinkTimeoutError(
            f"{place} has not answered for {ANSWER_S:g} s (asked for {key!r}); restart the job if the "
            "store's process has ended, or restore the network to its host"
        ) from error


@contextmanager
def in_words(doing: str, timeout_s: float) -> Iterator[None]:
    """Run a ``with`` block, and convert torch's long errors, and timeouts, to a ``LinkError`` of one line."""
    started = monotonic()
    try:
        yield
    except LinkError:
        raise
    except (RuntimeError, TimeoutError) as error:
        late = monotonic() - started >= timeout_s * 0.9
        reason = f"nothing within {timeout_s:g} s" if late else str(error).splitlines()[0]
        raise LinkError(
            f"{doing}: a peer has ended or is too slow ({reason}); see the other ranks' errors"
        ) from error
