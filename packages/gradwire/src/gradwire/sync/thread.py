"""The communication thread: one for pipelines, for buckets that overlap backward, and for DDP's hook.

It works off what is handed over, in order, and stops for good at the first failure. Pipe-SGD (its algorithm
1) has one per rank.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import TIMEOUT_MAX, Lock, Thread
from time import perf_counter
from types import TracebackType

import torch

from gradwire import collectives
from gradwire.costs import ExchangeCost
from gradwire.devices import Staged
from gradwire.errors import LinkTimeoutError, copied
from gradwire.exchange import Exchange
from gradwire.exchange.request import BucketRequest
from gradwire.exchange.views import ParameterViews
from gradwire.launch.store import join_all
from gradwire.sync.buckets import cut
from gradwire.sync.flat import FlatGradients
from gradwire.sync.ledger.meter import LostMeter, Measure, MethodMeter
from gradwire.sync.ledger.sinks import profiled
from gradwire.sync.residual import parts
from gradwire.sync.used_parameters import Reach, set_aside

# Threads that end before the interpreter does.
#
# While it ends, the interpreter ends every daemon thread that wants to go on in Python. One that comes back
# from a kernel or from Gloo then has C++ on its stack, which aborts the process: exit code 134 from a job
# that
# was done, and a launcher starts it again. So what is under way may finish first, within a limit. What does
# not, for a peer never comes, ends when its connections are closed, and gets a little more time for that.
# They
# are closed in any case: what the transport does without a thread would hold the process until the peers
# end.
#
# This happens in ``atexit``, after threads that are no daemons have ended: they may be the ones that train.

FINISH_S = 5.0
"""How long an interpreter that ends waits for what its threads have under way."""
BREAK_OFF_S = 5.0
"""How long it waits then for waits to end whose connections are closed."""

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
    with suppress(KeyboardInterrupt):  # whoever is impatient gets the next stage
        for _, finish, _ in left:
            finish()
        join_all([thread for thread, *_ in left], FINISH_S)
    for _, _, break_off in left:
        break_off()
    join_all([thread for thread, *_ in left], BREAK_OFF_S)


_OWN_WORK_S = 30.0
_ADVICE = "give the link a longer timeout_s"


@dataclass(slots=True, eq=False)
class Handover:
    """Work for the communication thread, whose outcome is ``result``.

    Attributes
    ----------
    name
        What the ledger calls it, the same in every step; None for what the ledger does not count.
    what, done
        What errors call it, and what happens to it.
    work
        Done on the thread; returns what it cost. What it uses is the thread's until ``result`` is there.
    nbytes
        How many bytes of float32 gradient it averages, in place.
    measure
        Measures what encoding loses of them, where the step is measured.
    timeout_s
        How long any single wait for a peer lasts in it; the link's timeout where it is None.
    """

    name: str | None
    what: str
    work: Callable[[], ExchangeCost]
    nbytes: int = 0
    measure: Measure = field(default_factory=Measure)
    timeout_s: float | None = None
    done: str = "averaged"
    result: Future[ExchangeCost] = field(default_factory=Future)
    raised_at: TracebackType | None = None  # each wait raises from there, so that no traceback grows
    counted: Lock = field(default_factory=Lock)  # taken by the first wait, of which the ledger is told


class CommunicationThread:
    """One daemon thread that does the work of one rank's exchanges, one after the other.

    An exception reaches whoever waits, as it is, with a note that names the work. Each wait raises a copy, so
    that nothing here keeps the frames of callers. The exchange is given up with it and closed, so that the
    peers learn of it, and no later work is begun: its outcome is what ``Transport.check`` raises. Nor is work
    begun whose result was cancelled. A program that ends waits a few seconds for what is queued
    (``endings``).

    Parameters
    ----------
    exchange
        Used by this thread alone while work is under way.
    meter
        Counts each piece of work in the step that first waits for it.
    advice
        What errors tell to do where work takes too long, beside looking for a stopped peer.
    """

    def __init__(self, exchange: Exchange, meter: LostMeter, advice: str = _ADVICE) -> None:
        self._exchange, self._meter, self._advice = exchange, meter, advice
        self._rank = exchange.link.rank
        self._inbox: SimpleQueue[Handover | None] = SimpleQueue()
        name = f"gradwire communication, rank {self._rank}"
        self._thread = start(self._run, name, self.end, exchange.close)

    def hand_over(self, handover: Handover) -> Handover:
        """Queue it and return it."""
        self._inbox.put(handover)
        return handover

    def give_up(self, failure: BaseException) -> None:
        """Close the link once what is under way is done; everything later ends with ``failure``."""
        self._exchange.transport.give_up(failure)
        self._inbox.put(Handover(None, "the end", ExchangeCost))

    def wait(self, handover: Handover) -> ExchangeCost:
        """Return what the work cost, once it is done. Raises what it raised, or ``LinkTimeoutError``."""
        started = perf_counter()
        patience_s = longest_s(self._exchange, handover.nbytes // 4, handover.timeout_s)
        # Not result(timeout=...): its TimeoutError could not be told from a LinkTimeoutError of the work.
        if not wait([handover.result], min(patience_s, TIMEOUT_MAX)).done:
            raise LinkTimeoutError(
                f"rank {self._rank} waited {patience_s:g} s for {handover.what} to be {handover.done}, but "
                f"its communication thread is still at work; look for a stopped peer, or {self._advice}"
            )
        error = handover.result.exception()
        if error is not None:
            raise copied(error).with_traceback(handover.raised_at)
        accounting = handover.result.result()
        if handover.name is not None and handover.counted.acquire(blocking=False):
            exposed_s = perf_counter() - started
            self._meter.count(handover.name, accounting, exposed_s, handover.nbytes, handover.measure)
        return accounting

    def end(self) -> None:
        """Let the thread end once it has done what is queued; return at once. May be called twice."""
        self._inbox.put(None)

    def close(self, count: int = 0, timeout_s: float | None = None) -> None:
        """End the thread, which may have ``count`` floats to average, and wait for it.

        ``timeout_s`` is the link's where it is None. Raises ``LinkTimeoutError`` if the thread does not end.
        """
        self.end()
        patience_s = longest_s(self._exchange, count, timeout_s)
        self._thread.join(min(patience_s, TIMEOUT_MAX))
        if self._thread.is_alive():
            raise LinkTimeoutError(
                f"rank {self._rank}: the communication thread did not end within {patience_s:g} s; look "
                "for a stopped peer, or close the link"
            )

    def _run(self) -> None:
        while (handover := self._inbox.get()) is not None:  # without limit: backward takes what it takes
            if handover.result.set_running_or_notify_cancel():
                unseen = handover.name is None or self._meter.ledger is None
                begun = self._exchange.transport.failure is None
                try:
                    self._exchange.transport.check()
                    with nullcontext() if unseen else profiled(f"exchange {handover.name}"):
                        accounting = handover.work()
                except BaseException as error:  # it is not lost: whoever waits raises it
                    if begun:
                        error.add_note(f"while the communication thread {handover.done} {handover.what}")
                    self._exchange.close(error)
                    handover.raised_at = error.__traceback__
                    handover.result.set_exception(error)
                else:
                    handover.result.set_result(accounting)
            del handover  # it holds a bucket


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


# One flat gradient on its way: averaged whole, or bucket by bucket on a communication thread.

WHOLE = "gradient"
"""What a ledger calls the gradient of a step that goes out as one bucket."""


class Buckets:
    """The buckets of gradients that are laid out alike, and the thread that averages them in their order.

    The exchange, whose plan cuts the buckets, belongs to the thread while buckets are under way. ``residual``
    is what this rank's encodings lost, laid out as the gradients; None where the plan keeps none.
    """

    def __init__(
        self, exchange: Exchange, meter: MethodMeter, gradients: FlatGradients, residual: torch.Tensor | None
    ) -> None:
        self.cut = cut(gradients.counts, exchange.plan.bucket_nbytes)
        self.thread = CommunicationThread(exchange, meter)
        self._exchange, self._meter = exchange, meter
        self._residual, self._residuals = residual, parts(residual, self.cut)
        self._views = [meter.views(exchange, bucket.parameters) for bucket in self.cut]

    def hand_over(
        self, step: int, gradients: FlatGradients, number: int, reach: Reach | None = None
    ) -> Handover:
        """Let the thread average bucket ``number``, from 0 up; do not touch it before it is.

        ``reach`` is the step's. It comes with the last bucket: all gradients are there then, and the other
        buckets go before.
        """
        bucket, residual = self.cut[number], self._residuals[number]
        waiting: list[torch.Tensor] = []
        if self._residual is not None:
            unreached = gradients.unreached(bucket.parameters)
            waiting = [gradients.part(each, self._residual) for each in unreached]
        name = WHOLE if len(self.cut) == 1 else f"bucket {number + 1}"
        what = f"the {WHOLE} of step {step}"
        staged, measure = gradients.staged(bucket), self._meter.measure(step, bucket.parameters)
        way = self._exchange, self._views[number], self._meter, step, staged, measure
        work = partial(average, *way, residual, waiting, reach)
        return self.thread.hand_over(
            Handover(name, what if name == WHOLE else f"{name} of {what}", work, staged.nbytes, measure)
        )

    def close(self) -> None:
        """Join the thread. Raises ``LinkTimeoutError`` if it does not end."""
        self.thread.close(max(bucket.count for bucket in self.cut))


def average(
    exchange: Exchange,
    views: ParameterViews | None,
    meter: MethodMeter,
    step: int,
    staged: Staged,
    measure: Measure,
    residual: torch.Tensor | None,
    waiting: Sequence[torch.Tensor],
    reach: Reach | None,
) -> ExchangeCost:
    """Average a flat gradient, or a bucket of it, in place over all ranks; return what that cost.

    ``views`` are its parameters, if they have codecs of their own. ``waiting`` are the parts of the
    residual that stay out of this step. Where ``reach`` comes with it, the ranks agree on what none of them
    has reached. Raises ``ExchangeError``.
    """
    exchange.link.step = step
    with staged.stream.current, set_aside(waiting):
        request = BucketRequest(views=views, residual=residual, norms=measure.norms)
        accounting = exchange.run(staged.floats(), request)
    accounting.device_nbytes += staged.crossing_nbytes
    staged.store()
    accounting += meter.finish(step, measure, exchange)
    return accounting if reach is None else accounting + reach.agree(exchange)
