"""The communication thread and its work: one thread for each rank of a model.

The thread runs queued work in order, and runs nothing after the first failure. Algorithm 1 of the Pipe-SGD
paper has one such thread per rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import nullcontext
from queue import SimpleQueue
from threading import TIMEOUT_MAX, Lock, current_thread
from time import perf_counter
from types import TracebackType
from typing import Generic, TypeVar

from gradwire import collectives
from gradwire.costs import ExchangeCost
from gradwire.errors import LinkTimeoutError, LossyError, copied
from gradwire.exchange import Exchange
from gradwire.sync.context import SyncContext
from gradwire.sync.daemon import start
from gradwire.sync.ledger.lost import ErrorSums
from gradwire.sync.ledger.sinks import profiled

T = TypeVar("T")

_OWN_WORK_S = 30.0
"""The limit for a rank's own part of an all-reduce, such as encoding, in seconds."""


class Work(ABC):
    """One piece of work for the communication thread, like ``torch.distributed.Work``.

    If the work failed, every ``wait`` raises its own copy of the exception, with a note that names the work.
    So this object keeps no reference to the caller's frame.

    Parameters
    ----------
    name
        The work's name in the ledger, the same in every step; None for work that is not counted.
    what, done
        The words that name the work in errors: a noun phrase, and a past participle.
    timeout_s
        The limit for any single wait for a peer; None for the link's timeout.
    count
        A function that the first ``wait`` of named work calls with the seconds that it waited.

    Attributes
    ----------
    nbytes, step
        The bytes of float32 gradient to average, and this process's training step from 1, or 0 outside of
        steps.
    cost
        The cost, once the work is done.
    lost, verdict
        The encoding errors, if measured, and the error that all ranks agreed to raise, if any.
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
        self._raised_at: TracebackType | None = None  # every wait raises from here, so no traceback grows
        self._counted = Lock()

    @abstractmethod
    def run(self, exchange: Exchange) -> None:
        """Do the work and set ``cost``, on the communication thread."""

    def execute(self) -> None:
        """Run the work unless it was cancelled, and store the outcome for ``wait``; never raise."""
        if not self._result.set_running_or_notify_cancel():
            return
        transport = self.context.exchange.transport
        has_begun = transport.failure is None
        is_unseen = self.name is None or self.context.ledger is None
        try:
            transport.check()
            with nullcontext() if is_unseen else profiled(f"exchange {self.name}"):
                self.run(self.context.exchange)
        except BaseException as error:  # every wait raises this error
            if has_begun:
                self.context.annotate(error, f"while the communication thread {self.done} {self.what}")
            self._raised_at = error.__traceback__
            self._fail(self.context.fail(error))
        else:
            self._result.set_result(None)

    def is_done(self) -> bool:
        """Return whether ``wait`` would return or raise at once."""
        return self._result.done()

    def settle(self) -> None:
        """Wait until the work is done, without counting it or raising its error."""
        wait([self._result])  # without a timeout, because every wait inside the work has a limit

    def wait(self) -> ExchangeCost:
        """Wait for the work, count it the first time, and return its cost.

        Raises the work's error, or ``LinkTimeoutError`` if the communication thread stays busy.
        """
        began = perf_counter()
        patience_s = longest_s(self.context.exchange, self.nbytes // 4, self.timeout_s)
        # Not result(timeout=...): its TimeoutError would look like a LinkTimeoutError of the work.
        if not wait([self._result], min(patience_s, TIMEOUT_MAX)).done:
            raise LinkTimeoutError(
                f"rank {self.context.rank} waited {patience_s:g} s for {self.what} to be {self.done}, but "
                f"its communication thread is still busy; look for a stopped peer, or "
                f"{self.context.late_advice}"
            )
        return self._outcome(began)

    def cancel(self) -> bool:
        """Cancel the work if it has not started, so that ``wait`` raises; return whether it was cancelled."""
        return self._result.cancel()

    def _outcome(self, began: float) -> ExchangeCost:
        """Return the cost of finished work, for which a wait began at ``began``, or raise its error."""
        error = self._result.exception()
        if error is not None:
            raise copied(error).with_traceback(self._raised_at)
        if self.name is not None and self._count is not None and self._counted.acquire(blocking=False):
            self._count(self, perf_counter() - began)
        return self.cost

    def _fail(self, error: BaseException) -> None:
        self._result.set_exception(error)


class CallWork(Work, Generic[T]):
    """A call that uses the exchange on the communication thread; ``value`` is its result once it is done.

    The call's frames carry the run's step ``link_step``, by default the step of the preceding work.
    """

    value: T

    def __init__(
        self,
        context: SyncContext,
        what: str,
        call: Callable[[Exchange], T],
        timeout_s: float | None,
        link_step: int | None = None,
    ) -> None:
        super().__init__(context, None, what, timeout_s)
        self._call, self._link_step = call, link_step

    def run(self, exchange: Exchange) -> None:
        """Make the call, and store its result."""
        if self._link_step is not None:
            exchange.link.step = self._link_step
        self.value = self._call(exchange)


class CommunicationThread:
    """A daemon thread that runs one rank's exchanges in order.

    If work raises, ``Work`` stores the exception for ``wait``, and the context fails, which notifies the
    peers. Later work doesn't run: it fails with the error of ``Transport.check``. At its end, a program waits
    a few seconds for queued work (``start``).

    ``context`` is the work's context; only this thread uses its exchange while work is running. ``lane`` is
    the number of the link among the model's links.
    """

    def __init__(self, context: SyncContext, lane: int = 0) -> None:
        self._context = context
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        name = f"gradwire communication, rank {context.rank}" + (f", lane {lane}" if lane else "")
        self._thread = start(self._run, name, self.end, context.exchange.close)
        context.thread = self  # last, because another lane's thread may fail now and inspect this thread

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return current_thread() is self._thread

    def put(self, work: Work) -> None:
        """Queue a piece of work."""
        self._inbox.put(work)

    def give_up(self, failure: BaseException) -> None:
        """Close the link after the running work; all later work fails with ``failure``."""
        transport = self._context.exchange.transport
        if transport.failure is None:  # else the link is closed, or the end of the link is queued
            transport.give_up(failure)
            self.put(CallWork(self._context, "the end", lambda _: None, None))

    def end(self) -> None:
        """End the thread after its queued work, but return at once; may be called twice."""
        self._inbox.put(None)

    def close(self, count: int = 0) -> None:
        """End the thread, which may still average ``count`` floats, and join it.

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
        while (work := self._inbox.get()) is not None:  # no timeout: a backward pass may take any time
            work.execute()
            del work  # because it keeps a bucket's memory


def longest_s(exchange: Exchange, count: int, timeout_s: float | None = None) -> float:
    """Return the longest time that an all-reduce of ``count`` floats may take, in seconds.

    Sending a frame has a timeout (``timeout_s``, by default the link's), and so has receiving it. So a slow
    network is never mistaken for a dead one, and the exchange reports a dead network long before this time.
    """
    link, plan = exchange.link, exchange.plan
    steps = sum(1 for _ in collectives.get(plan.algorithm).schedule(link.rank, link.world))
    segments = len(plan.encodings) + 4 * count // plan.segment_nbytes
    return 2 * steps * segments * (link.timeout_s if timeout_s is None else timeout_s) + _OWN_WORK_S
