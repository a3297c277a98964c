"""Ranks for tests: threads over links in memory, or processes over Gloo."""

from __future__ import annotations

import multiprocessing
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from gradwire.links import Link, loopback
from support.processes import collect, run_rank

settings.register_profile("gradwire", deadline=None)  # a busy machine is no failure
settings.load_profile("gradwire")

# A script's background job ignores SIGINT, and the processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def run_ranks() -> Callable[..., list[Any]]:
    """Return ``run_ranks(world, fn, *args, links=None, timeout_s=10, errors="raise")``.

    It calls ``fn(link, *args)`` for every rank in a thread of its own and returns the results in the order of
    the ranks. The first exception is raised again at once, even when other ranks hang; with
    ``errors="return"`` an exception is the result of its rank.
    """
    return _run_ranks


def _run_ranks(
    world: int,
    fn: Callable[..., Any],
    *args: object,
    links: Sequence[Link] | None = None,
    timeout_s: float = 10.0,
    errors: str = "raise",
) -> list[Any]:
    ends = list(loopback(world, timeout_s) if links is None else links)
    finished: queue.Queue[tuple[int, Any, BaseException | None]] = queue.Queue()

    def run(rank: int) -> None:
        try:
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


@pytest.fixture
def run_processes(tmp_path: Path) -> Callable[..., list[Any]]:
    """Return ``run_processes(world, fn, *args, timeout_s=60, absent=())``.

    It calls ``fn(*args)`` in ``world`` new processes with ``torch.distributed`` initialised over Gloo and
    returns the results in the order of the ranks. A process that raises fails the test with its traceback,
    one that gives no answer in time fails it too; the ranks in ``absent`` are not waited for.
    """

    def run(
        world: int, fn: Callable[..., Any], *args: object, timeout_s: float = 60.0, absent: Sequence[int] = ()
    ) -> list[Any]:
        context = multiprocessing.get_context("forkserver")  # torch is imported once, not in every process
        context.set_forkserver_preload(["torch", "torch.distributed", "gradwire"])
        folder = tmp_path / f"processes-{time.monotonic_ns()}"
        folder.mkdir()
        processes = [
            context.Process(target=run_rank, args=(rank, world, folder, fn, args)) for rank in range(world)
        ]
        for process in processes:
            process.start()
        try:
            return collect(processes, folder, timeout_s, absent)
        finally:
            for process in processes:
                process.kill()
                process.join()

    return run
