"""The communication thread: one for pipelines, for buckets that overlap backward, and for DDP's hook.

It works off what is handed over, in order, and stops for good at the first failure. Pipe-SGD (its algorithm
1) has one per rank.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import TIMEOUT_MAX, Thread, current_thread

import torch

from gradwire.costs import ExchangeCost
from gradwire.devices import Staged
from gradwire.errors import LinkTimeoutError
from gradwire.exchange import Exchange
from gradwire.exchange.request import BucketRequest
from gradwire.exchange.views import ParameterViews
from gradwire.launch.store import join_all
from gradwire.sync.buckets import cut
from gradwire.sync.context import SyncContext
from gradwire.sync.flat import FlatGradients
from gradwire.sync.ledger.meter import Measure, MethodMeter
from gradwire.sync.residual import parts
from gradwire.sync.used_parameters import Reach, set_aside
from gradwire.sync.work import CallWork, Work, longest_s

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
        self._context = SyncContext(exchange, ledger=meter.ledger)
        self.thread = CommunicationThread(self._context)
        self._meter = meter
        self._residual, self._residuals = residual, parts(residual, self.cut)
        self._views = [meter.views(exchange, bucket.parameters) for bucket in self.cut]

    def hand_over(self, step: int, gradients: FlatGradients, number: int, reach: Reach | None = None) -> Work:
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
        work = _FlatWork(
            self._context,
            name,
            what if name == WHOLE else f"{name} of {what}",
            done="averaged",
            count=self._meter.count_work,
        )
        work.staged, work.measure = gradients.staged(bucket), self._meter.measure(step, bucket.parameters)
        work.given = self._views[number], self._meter, step
        work.nbytes, work.rest = work.staged.nbytes, (residual, waiting, reach)
        self.thread.put(work)
        return work

    def close(self) -> None:
        """Join the thread. Raises ``LinkTimeoutError`` if it does not end."""
        self.thread.close(max(bucket.count for bucket in self.cut))


class _FlatWork(Work):
    """The average of one bucket of a flat gradient."""

    staged: Staged
    measure: Measure
    given: tuple[ParameterViews | None, MethodMeter, int]
    rest: tuple[torch.Tensor | None, Sequence[torch.Tensor], Reach | None]

    def run(self, exchange: Exchange) -> None:
        """Average it."""
        self.cost = average(exchange, *self.given, self.staged, self.measure, *self.rest)
        self.lost, self.verdict = self.measure.measured, self.measure.verdict


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
