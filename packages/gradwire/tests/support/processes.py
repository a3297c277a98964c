"""Processes that tests run functions in; apart from conftest, since a process finds it by its module's name.

A process that has imported torch's compiler and FSDP2 has taken seconds to start, so one set of them serves
all tests. What a case leaves behind must not reach the next: each gets a process group of its own, and a set
in which a rank failed, died or gave no answer is ended whole.
"""

from __future__ import annotations

import datetime
import gc
import multiprocessing
import multiprocessing.forkserver
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PRELOADED = [
    "torch._dynamo",  # what DDP and every optimizer import when they are first made
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "gradwire.pipe.pipe_sgd",
    "gradwire.fsdp.attach",
    "gradwire.ddp.attach",
]
GRACE_S = 1.0  # after a first error: the others tell what is its cause and what its echo
FAREWELL_S = 5.0
NAME = "rank of the tests"


class RankError(AssertionError):
    """A rank failed; the text has its traceback."""


class Pool:
    """As many processes as the largest world so far, and the first of them for a smaller one."""

    def __init__(self) -> None:
        self._ranks: list[tuple[BaseProcess, Connection[bytes, bytes]]] = []

    def run(
        self,
        world: int,
        fn: Callable[..., Any],
        args: tuple[object, ...],
        folder: Path,
        timeout_s: float,
        absent: Collection[int] = (),
        alone: bool = False,
    ) -> list[Any]:
        """Call ``fn(*args)`` on every rank and return the results in order, None for the absent ones.

        With ``alone`` the processes are new ones, which nobody uses again.
        """
        if alone:
            self.end()
        while len(self._ranks) < world:
            self._ranks.append(_start())
        try:
            for rank, (_, pipe) in enumerate(self._ranks[:world]):
                pipe.send_bytes(pickle.dumps((rank, world, str(folder), fn, args)))
            results = self._collect(world, timeout_s, absent)
        except BaseException:
            self.end(at_once=range(world))
            raise
        if absent or alone:
            self.end(at_once=absent)
        return results

    def end(self, at_once: Collection[int] = ()) -> None:
        """End all processes, of which the ranks in ``at_once`` may be busy, stopped or gone."""
        ranks, self._ranks = self._ranks, []
        for rank, (process, pipe) in enumerate(ranks):
            pipe.close()
            if rank in at_once:
                process.kill()
        deadline = time.monotonic() + FAREWELL_S
        for process, _ in ranks:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()

    def _collect(self, world: int, timeout_s: float, absent: Collection[int]) -> list[Any]:
        waited_for = {pipe: rank for rank, (_, pipe) in enumerate(self._ranks[:world]) if rank not in absent}
        results: list[Any] = [None] * world
        errors: list[str] = []
        deadline = time.monotonic() + timeout_s
        while waited_for and (ready := wait(list(waited_for), max(0.0, deadline - time.monotonic()))):
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waited_for.pop(pipe)
                results[rank], error = self._receive(rank)
                if error is not None:
                    errors.append(f"rank {rank}:\n{error}")
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        if errors:
            raise RankError("\n".join(errors))
        assert not waited_for, f"ranks {list(waited_for.values())} gave no answer within {timeout_s:g} s"
        return results

    def _receive(self, rank: int) -> tuple[Any, str | None]:
        """Return what a rank has said: its result, or what went wrong."""
        process, pipe = self._ranks[rank]
        try:
            return pickle.loads(pipe.recv_bytes())  # type: ignore[no-any-return]
        except (EOFError, OSError):
            process.join(FAREWELL_S)
            return None, f"it ended without an answer (exit {process.exitcode})"


def children() -> list[BaseProcess]:
    """Return the processes that this one has started and that are no ranks of the tests."""
    return [child for child in multiprocessing.active_children() if child.name != NAME]


def forkserver() -> ForkServerContext:
    """Return a context whose processes have imported torch and gradwire when they begin."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def prepare() -> None:
    """Let the fork server import what ranks need before anybody else starts it with less."""
    forkserver()
    multiprocessing.forkserver.ensure_running()


def _start() -> tuple[BaseProcess, Connection[bytes, bytes]]:
    context = forkserver()
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), name=NAME, daemon=True)
    process.start()
    theirs.close()  # ours: when the process is gone too, the pipe ends
    return process, ours


def serve(pipe: Connection[bytes, bytes]) -> None:
    """Do one case after the other until the other end is closed."""
    gc.freeze()  # what the fork server has imported is no case's, and takes long to look through
    while True:
        try:
            case = pipe.recv_bytes()
        except EOFError:
            return
        try:
            answer = pickle.dumps((run_rank(*pickle.loads(case)), None))
        except BaseException:
            answer = pickle.dumps((None, traceback.format_exc()))
        try:
            pipe.send_bytes(answer)
        except BrokenPipeError:
            return


def run_rank(rank: int, world: int, folder: str, fn: Callable[..., Any], args: tuple[object, ...]) -> Any:
    """Return ``fn(*args)`` of one rank of a new process group."""
    torch.set_num_threads(1)  # several ranks share few cores
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=60),
    )
    result = fn(*args)
    dist.destroy_process_group()
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
    gc.collect()
    return result
