"""Tasks that run as supervised processes on this machine, one per rank, or as one rank of a launched job."""

from __future__ import annotations

import logging
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from threading import Lock, Thread
from time import monotonic
from typing import Any, Generic, NoReturn, TypeVar

from torch._C._distributed_c10d import Store

from gradwire.errors import LOSSY_LOGGER, ExchangeError, GradwireError, JobError, LinkError
from gradwire.launch.launched import ending_on_signals, interrupts_held, launched_rank, whole
from gradwire.launch.rendezvous import check_same_options, join_launched, join_store, open_store
from gradwire.machine import is_inside

Event = TypeVar("Event")
Options = TypeVar("Options")


@dataclass
class RankContext(Generic[Event]):
    """The context that a rank's work receives: its rank, the function that reports events, and the store.

    ``join_store`` can be called once. ``doing`` describes what the rank is doing, for failure messages.
    """

    rank: int
    world: int
    report: Callable[[Event], None]
    join_store: Callable[[], Store]
    doing: str = "starting"

    @property
    def ranks_here(self) -> int:
        """The number of ranks that share this machine's cores. In a testbed, all hosts share one machine."""
        if is_inside() or "LOCAL_WORLD_SIZE" not in os.environ:
            return self.world
        return whole("LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class Task(Generic[Options, Event]):
    """A task that all ranks run together.

    Every rank calls ``work`` with its context and ``options``. Local processes import ``work`` by name, so it
    must be a module-level function. The modules in ``preload`` take seconds to import, so the fork server
    imports them once for all processes. ``timeout_s`` limits a rank's waits for other ranks. ``shared`` are
    the options, by name, that must be the same on all launched ranks. ``title`` returns the name of a rank in
    messages, and ``when`` the time for messages, such as "during run 2", from the last event or None.
    """

    work: Callable[[RankContext[Event], Options], None]
    options: Options
    world: int
    timeout_s: float
    shared: Mapping[str, object] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    title: Callable[[int], str] = "rank {}".format
    when: Callable[[Event | None], str] = lambda _event: "at work"


@dataclass(frozen=True)
class Finished:
    """The message of a rank that has finished its work."""

    rank: int


@dataclass(frozen=True)
class Warned:
    """A message with a rank's ``LossyWarning``, which the parent also logs."""

    sentence: str


@dataclass(frozen=True)
class Failed:
    """The message of a rank that has failed.

    ``consequence`` says whether another rank's failure may be the cause. ``details`` is the traceback of an
    internal error, or "" for an error that gradwire raises on purpose.
    """

    rank: int
    doing: str
    reason: str
    consequence: bool
    details: str = ""


def describe_failure(context: RankContext[Event], error: BaseException) -> Failed:
    """Return the message ``Failed`` of a rank whose work raised ``error``."""
    return Failed(
        rank=context.rank,
        doing=context.doing,
        reason=str(error) or type(error).__name__,
        consequence=isinstance(error, LinkError | ExchangeError),
        details="" if isinstance(error, GradwireError) else traceback.format_exc(),
    )


def main(
    work: Callable[[RankContext[Event], Options], None],
    options: Options,
    rank: int,
    world: int,
    port: int,
    timeout_s: float,
    connection: Connection[Event | Finished | Failed | Warned, None],
) -> None:
    """Run one rank in this process, which reports through ``connection`` and never outlives its parent."""
    Thread(target=_end_with_parent, name="gradwire lifeline", daemon=True).start()
    sending = Lock()

    def send(message: Any) -> None:  # several threads report
        with sending:
            connection.send(message)

    telling = _Telling(send)
    logging.getLogger(LOSSY_LOGGER).addHandler(telling)
    context: RankContext[Event] = RankContext(rank, world, send, lambda: join_store(port, timeout_s))
    try:
        work(context, options)
        send(Finished(rank))
    except BaseException as error:
        send(describe_failure(context, error))
        connection.close()
        os._exit(1)  # not sys.exit: a thread that waits for a peer must not keep the process alive
    finally:
        logging.getLogger(LOSSY_LOGGER).removeHandler(telling)  # the pipe closes before the process ends


class _Telling(logging.Handler):
    """A log handler that sends this process's lossy warnings to its parent."""

    def __init__(self, send: Callable[[Warned], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(Warned(record.getMessage()))


def _end_with_parent() -> None:
    """Wait until the parent process ends, and then end this process immediately."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


GRACE_S = 1.0
"""The seconds to wait for other ranks' reports after a failure, to distinguish cause and consequences."""
JOIN_S = 5.0
"""The seconds that a process may take to exit after its last message."""
_CONTEXT = get_context("forkserver")
_LOSSY = logging.getLogger(LOSSY_LOGGER)
_LOSSY.addHandler(logging.NullHandler())  # ranks have printed their warnings themselves


def run_local(task: Task[Options, Event], show: Callable[[Event], None]) -> None:
    """Run a task in local processes, one per rank, and pass all ranks' events to ``show``.

    On return, all processes have ended. Raises ``JobError`` if a rank fails.
    """
    _CONTEXT.set_forkserver_preload(["gradwire.launch.local", *task.preload])
    store = open_store(task.timeout_s)
    with ending_on_signals(), _Children(task, store.port) as children:
        children.watch(show)


class _Children(Generic[Options, Event]):
    """The local processes of a task, with the parent's ends of the pipes to them."""

    def __init__(self, task: Task[Options, Event], port: int) -> None:
        self._task, self._port = task, port
        self._processes: list[ForkServerProcess] = []
        self._pipes: dict[Connection[None, Event | Finished | Failed | Warned], int] = {}
        self._last: Event | None = None

    def __enter__(self) -> _Children[Options, Event]:
        resource_tracker.ensure_running()  # now, because its start would unblock blocked signals
        try:
            with interrupts_held():  # only the parent must handle Ctrl-C, which reaches all processes
                for rank in range(self._task.world):
                    self._start(rank)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._end()

    def watch(self, show: Callable[[Event], None]) -> None:
        """Pass all events to ``show`` until all ranks have finished. Raises ``JobError``."""
        finished: set[int] = set()
        while len(finished) < self._task.world:
            for rank, message in self._receive(None):
                if message is None or isinstance(message, Failed):
                    self._give_up(rank, message)
                elif isinstance(message, Finished):
                    finished.add(rank)
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
            target=main,
            args=(task.work, task.options, rank, task.world, self._port, task.timeout_s, sending),
            name=f"gradwire rank {rank}",
            daemon=True,
        )
        process.start()
        sending.close()  # the parent's copy, so that the pipe closes with the child
        self._processes.append(process)
        self._pipes[receiving] = rank

    def _receive(
        self, timeout_s: float | None
    ) -> Iterator[tuple[int, Event | Finished | Failed | Warned | None]]:
        """Yield received messages with their ranks, or None for a rank that ended without a message."""
        for pipe in wait(list(self._pipes), timeout_s):
            assert isinstance(pipe, Connection)
            rank = self._pipes[pipe]
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                message = None
            if message is None or isinstance(message, Finished):
                del self._pipes[pipe]  # the end of the pipe after Finished is no failure
            yield rank, message

    def _give_up(self, rank: int, failure: Failed | None) -> NoReturn:
        """Collect other ranks' failures within the grace time, and raise the likely cause."""
        failures: dict[int, Failed | None] = {rank: failure}
        deadline = monotonic() + GRACE_S
        while self._pipes and (left := deadline - monotonic()) > 0:
            for other, message in self._receive(left):
                if message is None or isinstance(message, Failed):
                    failures.setdefault(other, message)
        reports = list[Failed]()
        for gone, report in failures.items():
            if report is None:
                raise JobError(self._describe_death(gone))
            reports.append(report)
        cause = min(reports, key=lambda report: report.consequence)  # prefer a cause to a consequence
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
        """Kill all processes. They write no files, so no file is left partly written."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()


def run_joined(task: Task[Options, Event], show: Callable[[Event], None]) -> None:
    """Run this launched rank's part of a task. ``show`` receives the rank's events. Raises ``JobError``."""
    rank, world = launched_rank()

    def join_store() -> Store:
        store = join_launched(task.timeout_s)
        check_same_options(store, rank, task.shared, task.timeout_s)
        return store

    context: RankContext[Event] = RankContext(rank, world, show, join_store)
    try:
        task.work(context, task.options)
    except (LinkError, ExchangeError) as error:
        raise JobError(f"rank {rank} failed ({context.doing}): {error}") from error
