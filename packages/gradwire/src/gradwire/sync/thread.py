"""The communication thread, and its pieces of work: one thread for each rank of a model.

It works off what it is given, in order, and stops for good at the first failure. Pipe-SGD (its algorithm 1)
has one per rank.
"""

from __future__ import annotations

import atexit
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import nullcontext, suppress
from queue import SimpleQueue
from threading import TIMEOUT_MAX, Lock, Thread, current_thread
from time import perf_counter
from types import TracebackType
from typing import Generic, TypeVar

from gradwire import collectives
from gradwire.costs import ExchangeCost
from gradwire.errors import LinkTimeoutError, LossyError, copied
from gradwire.exchange import Exchange
from gradwire.launch.store import join_all
from gradwire.sync.context import SyncContext
from gradwire.sync.ledger.lost import ErrorSums
from gradwire.sync.ledger.sinks import profiled

T = TypeVar("T")

_OWN_WORK_S = 30.0

# Threads that end before the interpreter does.
#
# While it ends, the interpreter ends every daemon thread that wants to go on in Python. One that comes back
# from a kernel or from Gloo then has C++ on its stack, which aborts the process: exit code 134 from a job
# that was done, and a launcher starts it again. So what is under way may finish first, within a limit. What
# does not, because a peer never comes, ends when its connections are closed, and gets a little more time for
# that. They are closed in any case: what the transport does without a thread would hold the process until the
# peers end.
#
# This happens in ``atexit``, after threads that are no daemons have ended: they may be the ones that train.

FINISH_S = 5.0
"""The seconds that an ending interpreter gives the work that its threads have under way."""
BREAK_OFF_S = 5.0
"""The seconds that it gives waits to end then, after their connections are closed."""

_under_way: dict[Thread, tuple[Callable[[], object], Callable[[], object]]] = {}


def start(
    run: Callable[[], object], name: str, finish: Callable[[], object], break_off: Callable[[], object]
) -> Thread:
    """Start a daemon thread that has ended when the interpreter ends.

    At the interpreter's end ``finish`` is called, which lets ``run`` return once it has done what is under
    way. After that, or where it has not in time, ``break_off`` lets whatever any thread waits for fail.
    """
    thread = Thread(target=lambda: _watched(run, thread), name=name, daemon=True)
    _under_way[thread] = finish, break_off
    atexit.unregister(_end_all)
    atexit.register(_end_all)  # what was registered last comes first: before the connections are closed
    thread.start()
    return thread


def _watched(run: Callable[[], object], thread: Thread) -> None:
    try:
        run()
    finally:
        del _under_way[thread]


def _end_all() -> None:
    left = [(thread, *ways) for thread, ways in list(_under_way.items()) if thread.is_alive()]
    with suppress(KeyboardInterrupt):  # an impatient user gets the next stage
        for _, finish, _ in left:
            finish()
        join_all([thread for thread, *_ in left], FINISH_S)
    for _, _, break_off in left:
        break_off()
    join_all([thread for thread, *_ in left], BREAK_OFF_S)


class Work(ABC):
    """One piece of work for the communication thread, as ``torch.distributed.Work``.

    An exception reaches each caller of ``wait`` as a copy, with a note that names the work, so that nothing
    here keeps the frames of callers.

    Parameters
    ----------
    name
        The ledger's name of it, the same in every step; None: it is not counted.
    what, done
        The names of the work and of its end in errors.
    timeout_s
        The limit of any single wait for a peer in it; None: the link's timeout.
    count
        Called by the first ``wait`` of work that has a name, with the seconds that it has waited.

    Attributes
    ----------
    nbytes, step
        Bytes of float32 gradient that it averages, and its training step of this process, counted from 1 up;
        0 for none.
    cost
        Its cost, once it is done.
    lost, verdict
        The errors of encoding, where they are measured, and the error that all ranks have agreed to raise.
    """

    nbytes = step = 0

    def __init__(
        self,
        context: SyncContext,
        name: str | None,
        what: str,
        timeout_s: float | None = None,
        *,
        done: str = "exchanged",
        count: Callable[[Work, float], None] | None = None,
    ) -> None:
        self.context, self.name, self.what, self.done = context, name, what, done
        self.timeout_s, self._count = timeout_s, count
        self.cost = ExchangeCost()
        self.lost: ErrorSums | None = None
        self.verdict: LossyError | None = None
        self._result = Future[None]()
        self._raised_at: TracebackType | None = None  # each wait raises from there, so no traceback grows
        self._counted = Lock()

    @abstractmethod
    def run(self, exchange: Exchange) -> None:
        """Do the work and set ``cost``; on the communication thread."""

    def execute(self) -> None:
        """Run, unless it was cancelled, and let ``wait`` return or raise; never raise here."""
        if not self._result.set_running_or_notify_cancel():
            return
        transport = self.context.exchange.transport
        has_begun = transport.failure is None
        is_unseen = self.name is None or self.context.ledger is None
        try:
            transport.check()
            with nullcontext() if is_unseen else profiled(f"exchange {self.name}"):
                self.run(self.context.exchange)
        except BaseException as error:  # it is not lost: every wait raises it
            if has_begun:
                error.add_note(f"while the communication thread {self.done} {self.what}")
            self._raised_at = error.__traceback__
            self._fail(self.context.fail(error))
        else:
            self._result.set_result(None)

    def is_done(self) -> bool:
        """Return whether ``wait`` would return or raise at once."""
        return self._result.done()

    def wait(self) -> ExchangeCost:
        """Return the cost of the work, once it is done, and let it be counted, once.

        Raises what the work raised, or ``LinkTimeoutError`` if the communication thread does not come back.
        """
        began = perf_counter()
        patience_s = longest_s(self.context.exchange, self.nbytes // 4, self.timeout_s)
        # Not result(timeout=...): its TimeoutError would look like a LinkTimeoutError of the work.
        if not wait([self._result], min(patience_s, TIMEOUT_MAX)).done:
            raise LinkTimeoutError(
                f"rank {self.context.rank} waited {patience_s:g} s for {self.what} to be {self.done}, but "
                f"its communication thread is still at work; look for a stopped peer, or "
                f"{self.context.late_advice}"
            )
        return self._outcome(began)

    def cancel(self) -> bool:
        """Drop it if it has not begun; return whether it will not run. A later ``wait`` raises."""
        return self._result.cancel()

    def _outcome(self, began: float) -> ExchangeCost:
        """Return the cost of work that is done, which one has waited for since ``began``, or raise."""
        error = self._result.exception()
        if error is not None:
            raise copied(error).with_traceback(self._raised_at)
        if self.name is not None and self._count is not None and self._counted.acquire(blocking=False):
            self._count(self, perf_counter() - began)
        return self.cost

    def _fail(self, error: BaseException) -> None:
        self._result.set_exception(error)


class CallWork(Work, Generic[T]):
    """A call with the exchange, on the communication thread: what it returns is ``value`` once it is done."""

    value: T

    def __init__(
        self, context: SyncContext, what: str, call: Callable[[Exchange], T], timeout_s: float | None
    ) -> None:
        super().__init__(context, None, what, timeout_s)
        self._call = call

    def run(self, exchange: Exchange) -> None:
        """Call."""
        self.value = self._call(exchange)


class CommunicationThread:
    """One daemon thread that does the work of one rank's exchanges, one after the other.

    ``Work`` says what becomes of an exception. The context fails with it, so that the peers learn of it, and
    no later work is begun: its outcome is what ``Transport.check`` raises. A program that ends waits a few
    seconds for what is queued (``start``).

    ``context`` is that of the work; its exchange is this thread's alone while work is under way.
    """

    def __init__(self, context: SyncContext) -> None:
        self._context, context.thread = context, self
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        name = f"gradwire communication, rank {context.rank}"
        self._thread = start(self._run, name, self.end, context.exchange.close)

    @property
    def is_current(self) -> bool:
        """Whether this is called on the thread itself."""
        return current_thread() is self._thread

    def put(self, work: Work) -> None:
        """Queue a piece of work."""
        self._inbox.put(work)

    def give_up(self, failure: BaseException) -> None:
        """Close the link once what is under way is done; everything later ends with ``failure``."""
        self._context.exchange.transport.give_up(failure)
        self.put(CallWork(self._context, "the end", lambda _: None, None))

    def end(self) -> None:
        """Let the thread end once it has done what is queued; return at once. May be called twice."""
        self._inbox.put(None)

    def close(self, count: int = 0) -> None:
        """End the thread, which may have ``count`` floats to average, and wait for it.

        Raises ``LinkTimeoutError`` if the thread does not end.
        """
        self.end()
        patience_s = longest_s(self._context.exchange, count)
        self._thread.join(min(patience_s, TIMEOUT_MAX))
        if self._thread.is_alive():
            raise LinkTimeoutError(
                f"rank {self._context.rank}: the communication thread did not end within {patience_s:g} s; "
                "look for a stopped peer, or close the link"
            )

    def _run(self) -> None:
        while (work := self._inbox.get()) is not None:  # without limit: backward takes what it takes
            work.execute()
            del work  # it holds a bucket


def longest_s(exchange: Exchange, count: int, timeout_s: float | None = None) -> float:
    """Return the seconds after which an all-reduce of ``count`` floats must have ended or failed by itself.

    Every frame has the link's timeout (``timeout_s``, where that is given), on its way out and on its way in,
    so a slow network that still moves is never taken for a dead one, and a dead one is reported by the
    exchange long before.
    """
    link, plan = exchange.link, exchange.plan
    steps = sum(1 for _ in collectives.get(plan.algorithm).schedule(link.rank, link.world))
    segments = len(plan.encodings) + 4 * count // plan.segment_nbytes
    return 2 * steps * segments * (link.timeout_s if timeout_s is None else timeout_s) + _OWN_WORK_S
