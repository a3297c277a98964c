"""Ranks that are threads, over links in memory."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from gradwire.links import Link, loopback

_CORES = sorted(os.sched_getaffinity(0))
_OWN = {_CORES[int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % len(_CORES)]}
"""The core of this worker's ranks, where there are more of them than cores.

Python runs one thread at a time, and on a busy machine, handing over to one on another core takes several
times as long.
"""


def run_ranks(
    world: int,
    fn: Callable[..., Any],
    *args: object,
    links: Sequence[Link] | None = None,
    timeout_s: float = 10.0,
    errors: str = "raise",
) -> list[Any]:
    """Call ``fn(link, *args)`` for every rank in a thread of its own; return the results in their order.

    The first exception is raised again at once, even when other ranks hang; with ``errors="return"`` an
    exception is the result of its rank.
    """
    ends = list(loopback(world, timeout_s) if links is None else links)
    finished: queue.Queue[tuple[int, Any, BaseException | None]] = queue.Queue()

    def run(rank: int) -> None:
        try:
            if world > len(_CORES):
                os.sched_setaffinity(0, _OWN)
            finished.put((rank, fn(ends[rank], *args), None))
        except BaseException as error:
            finished.put((rank, None, error))

    for rank in range(world):
        threading.Thread(target=run, args=(rank,), daemon=True, name=f"rank {rank}").start()
    results: list[Any] = [None] * world
    try:
        for _ in range(world):
            rank, result, error = finished.get(timeout=60)
            if error is not None and errors == "raise":
                raise error
            results[rank] = result if error is None else error
    finally:
        for end in ends:
            end.close()
    return results
