"""Start the ranks as processes of this machine, watch them, and leave nothing behind."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from time import monotonic
from typing import Generic, NoReturn

from gradwire.errors import LOSSY_LOGGER, JobError
from gradwire.launch import child
from gradwire.launch.context import Event, Failed, Finished, Options, Task, Warned
from gradwire.launch.rendezvous import open_store
from gradwire.launch.signals import ending_on_signals
from gradwire.testbed.run.interrupts import interrupts_held

GRACE_S = 1.0
"""How long to listen on after a first failure: the others' reports tell the cause from its echoes."""
JOIN_S = 5.0
"""How long a process that has reported its end may take for it."""
_CONTEXT = get_context("forkserver")
_LOSSY = logging.getLogger(LOSSY_LOGGER)
_LOSSY.addHandler(logging.NullHandler())  # ranks have printed their warnings themselves


def run_local(task: Task[Options, Event], show: Callable[[Event], None]) -> None:
    """Do a task in processes of this machine, all ended on return; ``show`` gets every rank's events.

    Raises ``JobError`` for whatever ends it early.
    """
    _CONTEXT.set_forkserver_preload(["gradwire.launch.child", *task.preload])
    store = open_store(task.timeout_s)
    with ending_on_signals(), _Children(task, store.port) as children:
        children.watch(show)


class _Children(Generic[Options, Event]):
    """The processes and the ends of their pipes."""

    def __init__(self, task: Task[Options, Event], port: int) -> None:
        self._task, self._port = task, port
        self._processes: list[ForkServerProcess] = []
        self._pipes: dict[Connection[None, Event | Finished | Failed | Warned], int] = {}
        self._last: Event | None = None

    def __enter__(self) -> _Children[Options, Event]:
        resource_tracker.ensure_running()  # starting it would end the blocking
        try:
            with interrupts_held():  # Ctrl-C reaches all of them, but only this process is to act
                for rank in range(self._task.world):
                    self._start(rank)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._end()

    def watch(self, show: Callable[[Event], None]) -> None:
        """Show what comes until all ranks have finished. Raises ``JobError``."""
        finished: set[int] = set()
        while len(finished) < self._task.world:
            for rank, message in self._receive(None):
                if message is None or isinstance(message, Failed):
                    self._give_up(rank, message)
                elif isinstance(message, Finished):
                    finished.add(rank)
                    self._pipes = {pipe: other for pipe, other in self._pipes.items() if other != rank}
                elif isinstance(message, Warned):
                    _LOSSY.warning(message.sentence)
                else:
                    self._last = message
                    show(message)
        for process in self._processes:
            process.join(JOIN_S)

    def _start(self, rank: int) -> None:
        receiving, sending = _CONTEXT.Pipe(duplex=False)
        task = self._task
        process = _CONTEXT.Process(
            target=child.main,
            args=(task.work, task.options, rank, task.world, self._port, task.timeout_s, sending),
            name=f"gradwire rank {rank}",
            daemon=True,
        )
        process.start()
        sending.close()  # ours: when the child's is gone too, the pipe ends
        self._processes.append(process)
        self._pipes[receiving] = rank

    def _receive(
        self, timeout_s: float | None
    ) -> Iterator[tuple[int, Event | Finished | Failed | Warned | None]]:
        """Yield what has come, with its rank; None for a rank that is gone without a message."""
        for pipe in wait(list(self._pipes), timeout_s):
            assert isinstance(pipe, Connection)
            rank = self._pipes[pipe]
            try:
                yield rank, pipe.recv()
            except (EOFError, OSError):
                del self._pipes[pipe]
                yield rank, None

    def _give_up(self, rank: int, failure: Failed | None) -> NoReturn:
        """Collect what others report within the grace time, and raise what seems the cause."""
        failures: dict[int, Failed | None] = {rank: failure}
        deadline = monotonic() + GRACE_S
        while self._pipes and (left := deadline - monotonic()) > 0:
            for other, message in self._receive(left):
                if message is None or isinstance(message, Failed):
                    failures.setdefault(other, message)
        for gone, report in failures.items():
            if report is None:
                raise JobError(self._describe_death(gone))
        reports = [report for report in failures.values() if report is not None]
        cause = min(
            reports, key=lambda report: report.consequence
        )  # the first that is no echo, else the first
        text = f"{self._task.title(cause.rank)} failed ({cause.doing}): {cause.reason}"
        if cause.details:
            raise RuntimeError(f"{text}\n\n{cause.details}")
        raise JobError(text)

    def _describe_death(self, rank: int) -> str:
        process = self._processes[rank]
        process.join(JOIN_S)
        code = process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else "ended"
        title, when = self._task.title(rank), self._task.when(self._last)
        return f"{title} {how} {when}; the other processes were ended and nothing was written"

    def _end(self) -> None:
        """End what still runs; a rank keeps nothing that it could leave half-written."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
