"""Start the workers of a local job, watch them, and leave nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from time import monotonic
from types import FrameType
from typing import NoReturn

from gradwire.errors import JobError
from gradwire.job import worker
from gradwire.job.events import Event, Failed, Finished, Progress, RunDone, RunResult
from gradwire.job.options import JobOptions
from gradwire.launch.rendezvous import open_store

GRACE_S = 1.0
"""How long to listen on after a first failure: the others' reports tell the cause from its echoes."""
FAREWELL_S = 5.0
_CONTEXT = get_context("forkserver")
_PRELOAD = ("gradwire.job.worker", "torch._dynamo")
"""What takes seconds to import (the second for torch.optim): once, in a process that has no threads yet."""


def run_local(options: JobOptions, show: Callable[[Progress], None]) -> tuple[RunResult, ...]:
    """Perform a job in processes of this machine, all ended on return. Raises ``JobError``."""
    _CONTEXT.set_forkserver_preload(list(_PRELOAD))
    store = open_store(options.timeout_s)
    with _ending_on_signals(), _Workers(options, store.port) as workers:
        return workers.watch(show)


class _Workers:
    """The worker processes and the ends of their pipes."""

    def __init__(self, options: JobOptions, port: int) -> None:
        self._options, self._port = options, port
        self._processes: list[ForkServerProcess] = []
        self._pipes: dict[Connection[None, Event], int] = {}
        self._progress: Progress | None = None

    def __enter__(self) -> _Workers:
        try:
            with _interrupts_held():
                for rank in range(self._options.world):
                    self._start(rank)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._end()

    def watch(self, show: Callable[[Progress], None]) -> tuple[RunResult, ...]:
        """Show what comes until all ranks have finished; return the results. Raises ``JobError``."""
        results: list[RunResult] = []
        finished: set[int] = set()
        while len(finished) < self._options.world:
            for rank, event in self._listen(None):
                if event is None or isinstance(event, Failed):
                    self._give_up(rank, event)
                elif isinstance(event, Finished):
                    finished.add(rank)
                    self._pipes = {pipe: other for pipe, other in self._pipes.items() if other != rank}
                else:
                    self._progress = event
                    show(event)
                    if isinstance(event, RunDone):
                        results.append(event.result)
        for process in self._processes:
            process.join(FAREWELL_S)
        return tuple(results)

    def _start(self, rank: int) -> None:
        receiving, sending = _CONTEXT.Pipe(duplex=False)
        name = f"gradwire rank {rank}"
        process = _CONTEXT.Process(
            target=worker.main, args=(self._options, rank, self._port, sending), name=name, daemon=True
        )
        process.start()
        sending.close()  # ours: when the worker's is gone too, the pipe ends
        self._processes.append(process)
        self._pipes[receiving] = rank

    def _listen(self, timeout_s: float | None) -> Iterator[tuple[int, Event | None]]:
        """Yield what has come, with its rank; None for a rank that is gone without a word."""
        for pipe in wait(list(self._pipes), timeout_s):
            assert isinstance(pipe, Connection)
            rank = self._pipes[pipe]
            try:
                yield rank, pipe.recv()
            except (EOFError, OSError):
                del self._pipes[pipe]
                yield rank, None

    def _give_up(self, rank: int, event: Failed | None) -> NoReturn:
        """Collect what others report within the grace time, and raise what seems the cause."""
        failures: dict[int, Failed | None] = {rank: event}
        deadline = monotonic() + GRACE_S
        while self._pipes and (left := deadline - monotonic()) > 0:
            for other, said in self._listen(left):
                if said is None or isinstance(said, Failed):
                    failures.setdefault(other, said)
        for gone, said in failures.items():
            if said is None:
                raise JobError(self._obituary(gone))
        reports = [said for said in failures.values() if said is not None]
        cause = min(reports, key=lambda said: said.consequence)  # the first that is no echo, else the first
        message = f"{self._name(cause.rank)} failed ({cause.doing}): {cause.reason}"
        if cause.details:
            raise RuntimeError(f"{message}\n\n{cause.details}")
        raise JobError(message)

    def _obituary(self, rank: int) -> str:
        process = self._processes[rank]
        process.join(FAREWELL_S)
        code = process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else "ended"
        when = "before the first run" if self._progress is None else f"during {_run_of(self._progress)}"
        return f"{self._name(rank)} {how} {when}; the other processes were ended and nothing was written"

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({'the server' if rank == self._options.workers else 'a worker'})"

    def _end(self) -> None:
        """End what still runs; a worker keeps nothing that it could leave half-written."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()


def _run_of(event: Progress) -> str:
    return event.result.run.label if isinstance(event, RunDone) else event.run.label


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start processes with SIGINT blocked: Ctrl-C reaches them all, but only the parent is to act."""
    resource_tracker.ensure_running()  # starting it would end the blocking
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that whoever ends the job ends its processes."""

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
