"""The group of all ranks, for what is said beside the links: it is made, asked and left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from time import monotonic, sleep

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.launch.store import server_of
from gradwire.launch.within import within

POLL_S = 0.1
ANSWER_S = 30.0
"""How long the process that serves the store may take for an answer."""


@contextmanager
def joined_group(store: Store, rank: int, world: int, timeout_s: float) -> Iterator[dist.ProcessGroup]:
    """Belong to the default group, over Gloo, within a ``with`` block. Raises ``LinkError``."""
    with in_words(f"rank {rank} could not meet the other {world - 1} ranks", timeout_s):
        limit = timedelta(seconds=timeout_s)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    try:
        yield dist.group.WORLD  # type: ignore[misc]
    finally:
        dist.destroy_process_group()


def gather(group: dist.ProcessGroup, values: torch.Tensor) -> torch.Tensor:
    """Return every rank's ``values`` (1-D, equal lengths), one row a rank; raises what torch raises."""
    rows = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, values, group=group)
    return torch.stack(rows)


def wait_for(store: Store, key: str) -> None:
    """Sleep until a rank sets ``key``, however long that takes: measuring takes as long as it takes.

    If the ranks fall apart meanwhile the store goes with its host; raises what torch raises then, and
    ``LinkTimeoutError`` where the store is silent.
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
    """Turn what torch.distributed raises, a RuntimeError of many lines, into a ``LinkError`` of one."""
    started = monotonic()
    try:
        yield
    except RuntimeError as error:
        late = monotonic() - started >= timeout_s * 0.9
        reason = f"nothing within {timeout_s:g} s" if late else str(error).splitlines()[0]
        raise LinkError(f"{doing}, but a peer is gone or too slow: {reason}") from error
