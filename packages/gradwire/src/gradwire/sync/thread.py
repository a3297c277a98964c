"""The communication threads of a model on one rank, their work, and their lanes.

The first lane is the thread of Pipe-SGD (algorithm 1). Bucket i of a step uses lane i modulo the number of
lanes, on all ranks. So n lanes exchange n buckets at once, and a small bucket doesn't wait for the latency of
the preceding bucket. Every lane orders its own frames, as if it were the only one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from queue import SimpleQueue
from threading import TIMEOUT_MAX, Lock, current_thread
from time import perf_counter
from types import TracebackType
from typing import Generic, TypeVar

from gradwire import collectives
from gradwire.costs import ExchangeCost
from gradwire.errors import AttachError, ExchangeError, LinkTimeoutError, LossyError, copied
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.context import SyncContext
from gradwire.sync.daemon import start
from gradwire.sync.group import AFTER_AGREEING, connect
from gradwire.sync.ledger.lost import ErrorSums
from gradwire.sync.ledger.sinks import profiled
from gradwire.sync.messages import gather

T = TypeVar("T")
ExchangeNow = Callable[[str, Callable[[Exchange], list[list[float]]]], list[list[float]]]

_OWN_WORK_S = 30.0  # the limit for a rank's own part of an all-reduce, such as encoding, in seconds


class Work(ABC):
    """One piece of work for the communication thread, like ``torch.distributed.Work``.

    If the work failed, every ``wait`` raises its own copy of the exception, with a note that names the work.
    So this object keeps no reference to the caller's frame. Once done, the work has its ``cost``, the
    encoding errors ``lost`` if measured, and the ``verdict`` if all ranks agreed to raise an error.
    """

    nbytes = 0  # of float32 gradient to average
    step = 0  # of this process, from 1; 0 outside of steps

    def __init__(
        self,
        context: SyncContext,
        name: str | None,  # in the ledger, the same in every step; None for work that is not counted
        what: str,  # names the work in errors, as a noun phrase, with the participle ``done``
        timeout_s: float | None = None,  # for any single wait for a peer; by default the link's
        *,
        done: str = "exchanged",
        count: Callable[[Work, float], None] | None = None,  # receives the seconds of named work's first wait
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
        if not self._result.done():
            self._await()
        return self._outcome(began)

    def _await(self) -> None:
        patience_s = longest_s(self.context.exchange, self.nbytes // 4, self.timeout_s)
        # Not result(timeout=...): its TimeoutError would look like a LinkTimeoutError of the work.
        if not wait([self._result], min(patience_s, TIMEOUT_MAX)).done:
            raise LinkTimeoutError(
                f"rank {self.context.rank} waited {patience_s:g} s for {self.what} to be {self.done}, but "
                f"its communication thread is still busy; look for a stopped peer, or "
                f"{self.context.late_advice}"
            )

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
    """A call that uses the exchange on the communication thread; ``value`` is its result once it is done."""

    value: T

    def __init__(
        self,
        context: SyncContext,
        what: str,
        call: Callable[[Exchange], T],
        timeout_s: float | None,
        link_step: int | None = None,  # of the run, in the call's frames; by default the preceding work's
    ) -> None:
        super().__init__(context, None, what, timeout_s)
        self._call, self._link_step = call, link_step

    def run(self, exchange: Exchange) -> None:
        """Make the call, and store its result."""
        if self._link_step is not None:
            exchange.link.step = self._link_step
        self.value = self._call(exchange)


class CommunicationThread:
    """A daemon thread that runs the work of ``context`` in order, on link number ``lane`` of the model.

    Only this thread uses the context's exchange while work is running. If work raises, ``Work`` stores the
    exception for ``wait``, and the context fails, which notifies the peers. Later work fails with the error
    of ``Transport.check``. At its end, a program waits a few seconds for queued work (``daemon.start``).
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
        """End the thread, which may still average ``count`` floats, and join it, or raise an error."""
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

    Sending and receiving a frame each have a timeout (``timeout_s``, by default the link's). So a slow
    network is never mistaken for a dead one, and the exchange reports a dead network long before this time.
    """
    link, plan = exchange.link, exchange.plan
    steps = _count_steps(plan.algorithm, link.rank, link.world)
    segments = len(plan.encodings) + 4 * count // plan.segment_nbytes
    return 2 * steps * segments * (link.timeout_s if timeout_s is None else timeout_s) + _OWN_WORK_S


@lru_cache
def _count_steps(algorithm: str, rank: int, world: int) -> int:
    return sum(1 for _ in collectives.get(algorithm).schedule(rank, world))


class Lanes:
    """The links and threads of one model's buckets on one rank.

    All work except buckets uses lane 0, the link of ``context``. A failure of one lane ends all lanes.
    """

    def __init__(self, context: SyncContext) -> None:
        self._contexts = [context]
        self._threads: dict[SyncContext, CommunicationThread] = {}

    def extend(self, number: int, exchange_now: ExchangeNow) -> str:
        """Connect up to this number of lanes before a plan needs them; return why that failed, or ``""``.

        All ranks call this while no exchange is running. After each lane they compare results with
        ``exchange_now``, so that all ranks return a reason, or none does. After a failure, all ranks close
        the new lanes, and keep their plan. Raises ``ExchangeError`` if they can't compare results.
        """
        first, before = self._contexts[0], len(self._contexts)
        why, wait_s = "", 2 * first.timeout_s  # peers may still be waiting for this rank's connection
        for lane in range(before, number):
            try:
                self._connect(first.plan, number)
            except (AttachError, ExchangeError) as error:
                why = str(error)
            row = [float(bool(why))]
            rows = exchange_now("the lanes", partial(gather, row=row, timeout_s=wait_s))
            failed = [rank for rank, row in enumerate(rows) if row[0]]
            if failed:
                for context in self._contexts[before:]:
                    context.exchange.close()
                del self._contexts[before:]
                first.siblings = first.siblings if before > 1 else []
                return why or f"rank {failed[0]} could not connect lane {lane}"
        return ""

    def follow(self, plan: Plan) -> None:
        """Switch all lanes to a plan, and connect the lanes that it needs, between two exchanges.

        Raises ``AttachError``, and ``ExchangeError`` for a link without a process group, which has only one
        lane.
        """
        try:
            while len(self._contexts) < plan.lanes:
                self._connect(plan, plan.lanes)
        except BaseException:
            for context in self._contexts[1:]:
                context.exchange.close()
            raise
        for context in self._contexts:
            context.exchange.follow(plan)

    def of(self, index: int) -> SyncContext:
        """Return the context of the lane for the bucket with this index in its step."""
        first, number = self._contexts[0], index % self._contexts[0].plan.lanes
        chosen = self._contexts[number]
        chosen.steps_before, chosen.steps_done = first.steps_before, first.steps_done
        return chosen

    def put(self, work: Work) -> None:
        """Queue a piece of work on the communication thread of its lane."""
        context = work.context
        if context not in self._threads:
            with context.failing("while starting the communication thread"):
                self._threads[context] = CommunicationThread(context, self._contexts.index(context))
        self._threads[context].put(work)

    def end(self) -> None:
        """Close the links and end the threads after their queued work; return at once."""
        for context in self._contexts:
            thread = self._threads.get(context)
            if context.owns_link and thread is None:
                context.exchange.close()
            if thread is not None:
                if context.owns_link:
                    thread.put(CallWork(context, "the link", lambda exchange: exchange.close(), None))
                thread.end()

    def close(self, count: int) -> None:
        """Close the links and join the threads, which may average ``count`` floats; may be called again."""
        self.end()
        for thread in self._threads.values():
            thread.close(count)

    def _connect(self, plan: Plan, number: int) -> None:
        first = self._contexts[0]
        if first.group is None:
            raise ExchangeError(
                f"rank {first.rank}: expected a plan with lanes=1 for a link without a process group, got "
                f"lanes={number}; use lanes=1"
            )
        ending, lane = f"; {AFTER_AGREEING}", len(self._contexts)
        link = connect(first.group, first.timeout_s, AttachError, ending, tos=plan.tos, lane=lane)
        first.ranks = first.ranks or range(link.world)
        context = replace(
            first,
            exchange=Exchange(link, plan),
            ranks=range(link.world),
            owns_link=True,
            is_closed=False,
            thread=None,
        )
        self._contexts.append(context)
        for each in self._contexts:
            each.siblings = self._contexts
