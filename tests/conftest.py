"""Ranks for tests: threads over links in memory, or processes over Gloo."""

from __future__ import annotations

import datetime
import multiprocessing
import pickle
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from gradwire.links import Link, loopback


class RankError(AssertionError):
    """Several ranks failed or hung; the text has the traceback of the first."""


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
            context.Process(target=_process, args=(rank, world, folder, fn, args)) for rank in range(world)
        ]
        for process in processes:
            process.start()
        try:
            return _collect(processes, folder, timeout_s, absent)
        finally:
            for process in processes:
                process.kill()
                process.join()

    return run


def _process(rank: int, world: int, folder: Path, fn: Callable[..., Any], args: Sequence[object]) -> None:
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=60),
        )
        outcome: tuple[Any, str | None] = (fn(*args), None)
        dist.destroy_process_group()
    except BaseException:
        outcome = (None, traceback.format_exc())
    part = folder / f"{rank}.part"
    part.write_bytes(pickle.dumps(outcome))
    part.rename(folder / str(rank))


def _collect(
    processes: Sequence[BaseProcess], folder: Path, timeout_s: float, absent: Sequence[int]
) -> list[Any]:
    deadline = time.monotonic() + timeout_s
    results: list[Any] = []
    for rank, process in enumerate(processes):
        answer = folder / str(rank)
        if rank in absent:
            results.append(None)
            continue
        while process.is_alive() and not answer.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert answer.exists(), f"rank {rank} gave no answer within {timeout_s:g} s (exit {process.exitcode})"
        result, error = pickle.loads(answer.read_bytes())
        if error is not None:
            raise RankError(f"rank {rank}:\n{error}")
        results.append(result)
    return results
