"""What the processes of a test run; apart from conftest, since a process finds it by its module's name."""

from __future__ import annotations

import datetime
import pickle
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch.distributed as dist


class RankError(AssertionError):
    """A rank failed; the text has its traceback."""


def run_rank(rank: int, world: int, folder: Path, fn: Callable[..., Any], args: Sequence[object]) -> None:
    """Call ``fn(*args)`` as one rank and leave its result, or its traceback, in ``folder``."""
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


def collect(
    processes: Sequence[BaseProcess], folder: Path, timeout_s: float, absent: Sequence[int]
) -> list[Any]:
    """Return what the ranks left in ``folder``, None for the absent ones."""
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
