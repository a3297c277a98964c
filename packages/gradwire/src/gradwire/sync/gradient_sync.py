"""``GradientSync``: one model's gradients on one rank, under every front end.

What a step calls, in this order on all ranks: ``begin``, ``start`` for each bucket, ``finish``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist

from gradwire.checkpoints import sealed
from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError, GradwireError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.context import (
    EVERY_STEP,
    NO_HOST_REDUCTION,
    Cadence,
    HostReduction,
    SyncContext,
    SyncOptions,
)
from gradwire.sync.encoding_error import EncodingErrorMeter, Verdict
from gradwire.sync.error_feedback import NO_FEEDBACK, feedback_by_name
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.observe import NULL_BUCKET, StepCost, StepObserver
from gradwire.sync.residual import Residuals
from gradwire.sync.thread import CallWork, CommunicationThread, Work
from gradwire.sync.views import Layouts
from gradwire.sync.work import BucketWork, GradientBucket, Route, why_bypassed

T = TypeVar("T")


class GradientSync:
    """One model's gradients on one rank: buckets in, averages out.

    Connecting, agreeing, plan, residuals, ledger, failure and end exist here alone. The communication thread
    begins with the first bucket that needs it.

    Parameters
    ----------
    context
        The link of the buckets, and what the ranks agreed on.
    layouts
        Where parameters lie in buckets.
    feedback
        This rank's residuals.
    observers
        What watches steps and buckets, in this order, after the meter of encoding errors.
    host
        The reduction inside a host, before each exchange.
    cadence
        Which steps exchange.

    Attributes
    ----------
    meter
        Measures what encoding loses; the first observer.
    """

    def __init__(
        self,
        context: SyncContext,
        layouts: Layouts,
        feedback: Residuals,
        observers: Sequence[StepObserver] = (),
        host: HostReduction = NO_HOST_REDUCTION,
        cadence: Cadence = EVERY_STEP,
    ) -> None:
        self.context, self.layouts, self.feedback = context, layouts, feedback
        self.meter = EncodingErrorMeter(context, layouts.names)
        self._observers: tuple[StepObserver, ...] = (self.meter, *observers)
        self._host, self._cadence = host, cadence
        self._communication: CommunicationThread | None = None
        self._pending = deque[Work]()  # what ``finish`` waits for, oldest first
        self._counted = StepCost(0)  # by ``count``, in the step under way
        self._active: int | None = None
        self._has_begun = self._may_start_native = False
        self._is_due = True
        context.link.step = context.step
        for each in self._observers:
            each.connected(context)

    @classmethod
    def connect(
        cls,
        group: dist.ProcessGroup,
        plan: Plan,
        options: SyncOptions,
        layouts: Layouts,
        facts: Mapping[str, str],
        ledger: Ledger | None,
        observers: Sequence[StepObserver] = (),
        *,
        remedy: str,
        late_advice: str,
    ) -> Self:
        """Connect with all ranks of a group, as ``SyncContext.connect`` does. Raises ``AttachError``."""
        context = SyncContext.connect(
            group, plan, options, facts, ledger, remedy=remedy, late_advice=late_advice
        )
        try:
            feedback = Residuals(plan, context.rank, context.world, layouts.counts)
            return cls(context, layouts, feedback, observers)
        except BaseException:
            context.exchange.close()
            raise

    @property
    def plan(self) -> Plan:
        """The plan in use: what all ranks agreed on, or what they have chosen last."""
        return self.context.plan

    @property
    def step(self) -> int:
        """The number of steps that the run has taken, those before a checkpoint included."""
        return self.context.step

    @property
    def steps_done(self) -> int:
        """The number of steps that this process has taken."""
        return self.context.steps_done

    def begin(self, *, active: int | None = None) -> None:
        """Begin a step, before its first bucket; again for one that is retried.

        Observers look at the run, and at most one of them changes the plan. With ``active``, averages are
        over this number of ranks instead of all. Raises what observers raise.
        """
        context = self.context
        context.check()
        step = context.steps_done + 1
        self._pending = deque(each for each in self._pending if each.step != step)
        if all(each.is_done() for each in self._pending):  # else the thread is at an older step
            context.link.step = context.steps_before + step
        self._active, self._has_begun, self._counted = active, active is not None, StepCost(0)
        self._is_due = self._cadence.is_due(context.steps_before + step)
        chosen = [self._observed(each.begin, step, self) for each in self._observers]
        plans = [each for each in chosen if each is not None]
        assert len(plans) <= 1, "one observer chooses plans"
        for plan in plans:  # nothing is on the network now
            self.follow(plan)
        self._may_start_native = context.exchange.starts and active is None

    def start(self, bucket: GradientBucket) -> BucketWork:
        """Hand one bucket over; all ranks hand the same ones over in the same order.

        It is averaged in place, on the route that is chosen here. Do not touch it before its work is done.
        Raises ``ExchangeError`` once the exchange has failed or is closed.
        """
        context = self.context
        context.check()
        work = BucketWork(context, bucket, context.steps_done + 1, self.meter.count)
        work.active, work.timeout_s = self._active, self._next_timeout_s()
        reason = why_bypassed(bucket.tensor)
        if reason is not None:
            if context.ledger is not None:
                context.ledger.bypassed(reason, f"bucket {bucket.index}", bucket.tensor.nbytes)
            work.bypass()
            self._watch(work)
        elif not self._is_due:
            work.leave()
        else:
            work.host, work.share = self._host, self._host.reduce(bucket.tensor)
            self._watch(work)
            if not self._started_native(work):
                self._start_on_thread(work, bucket)
        self._has_begun = self._has_begun or work.route is not Route.BYPASS or not work.is_done()
        self._pending.append(work)
        if bucket.is_last:
            self.agree()
        return work

    def run(self, bucket: GradientBucket, values: torch.Tensor, context: SyncContext) -> BucketWork:
        """Exchange one bucket on the calling thread, over a link of the same model; return the work, done.

        ``values`` are the bucket's floats, which are exchanged in place; the front end stores them. ``count``
        comes then. An error is the caller's, whose ``context.fail`` ends the exchange.
        """
        work = BucketWork(context, bucket, self.context.steps_done + 1)
        work.feedback = NO_FEEDBACK if bucket.feedback is None else bucket.feedback
        self._watch(work)
        work.exchange_values(context.exchange, values)
        return work

    def count(self, work: BucketWork, wait_s: float) -> None:
        """Count work of ``run`` for which the training thread has waited so long."""
        self.meter.count(work, wait_s)
        waited, cost = self._counted.wait_s + wait_s, self._counted.exchange + work.cost
        self._counted = StepCost(0, waited, cost)

    def gathered(self, name: str, count: int, cost: ExchangeCost, wait_s: float) -> None:
        """Count an all-gather of ``count`` floats of weights, for which training has waited so long."""
        self.context.count(name, cost, wait_s)
        for each in self._observers:
            each.gathered(count, wait_s)

    def agree(self) -> None:
        """Let all ranks agree, after the last bucket of a step, whether the step ends with ``LossyError``.

        Only where they are to be strict, in the steps that are measured. ``start`` does it by itself.
        """
        step = self.context.steps_done + 1
        if self.meter.agrees(step):
            verdict = Verdict(self.context, self.meter, step)
            self._pending.append(verdict)
            self._thread().put(verdict)

    def observe(self, observer: StepObserver) -> None:
        """Let one more observer watch the steps to come; all ranks call it between the same two."""
        observer.connected(self.context)
        self._observers = (*self._observers, observer)

    def collect(self, until: int | None = None, waited_s: float = 0.0) -> StepCost:
        """Wait for the buckets of a step, keep what they lost, and count the step.

        Pipelines wait for those of steps up to ``until`` alone, counted as ``steps_done`` counts them, and
        have waited for some of them already, for ``waited_s``. The residuals of a step change once all of its
        buckets are averaged and finite, and on all ranks or on none: averages have the same bits. Raises what
        the exchange raised.
        """
        began, done = perf_counter(), list[Work]()
        cost, self._counted, before_s = self._counted.exchange, StepCost(0), self._counted.wait_s
        pending, self._pending = self._pending, deque()
        while pending and (until is None or pending[0].step <= until):
            work = pending.popleft()
            cost += work.wait()
            done.append(work)
        self._pending = pending
        feedback = [each.feedback for each in done if isinstance(each, BucketWork)]
        if all(each.usable for each in feedback):
            for each in feedback:
                each.keep()
        self.context.steps_done += 1
        found = StepCost(self.context.step, before_s + waited_s + perf_counter() - began, cost)
        for observer in self._observers:
            self._observed(observer.end, found)
        return found

    def end_step(self) -> None:
        """End the ledger's step, and warn of what encoding keeps losing.

        Raises ``LossyError`` where all ranks have agreed to; the next step can be taken then.
        """
        self.meter.end_step()

    def finish(self, until: int | None = None, waited_s: float = 0.0) -> StepCost:
        """End a training step: ``collect``, then ``end_step``."""
        found = self.collect(until, waited_s)
        self.end_step()
        return found

    def settle(self) -> None:
        """Wait until nothing is on the network; no step ends. Raises what the exchange raised."""
        for work in self._pending:
            work.wait()

    def cancel(self) -> None:
        """Drop the buckets that have not been sent, and forget the others; no step ends."""
        for work in self._pending:
            work.cancel()
        self._pending.clear()

    def resume(self, steps_done: int) -> None:
        """Count on after this many steps; buckets of other steps are dropped."""
        self.cancel()
        context = self.context
        context.steps_before, context.steps_done, context.link.step = 0, steps_done, steps_done

    def lay_out(self, layouts: Layouts) -> None:
        """Let parameters lie in buckets like this from now on, with nothing on the network."""
        self.layouts = layouts
        self.meter.follow(layouts.names)

    def exchange_now(self, what: str, call: Callable[[Exchange], T]) -> T:
        """Call ``call`` on the communication thread, while nothing else is on the network; return its value.

        All ranks make the same call between the same two steps, and may come late, as to a step. An error in
        it ends the exchange. Raises that error, and ``LinkTimeoutError`` if the thread does not come back.
        """
        self.context.check()
        what = f"{what} before step {self.context.steps_done + 1}"
        work = CallWork(self.context, what, call, self.context.begin_timeout_s)
        self._thread().put(work)
        work.wait()
        return work.value

    def follow(self, plan: Plan) -> None:
        """Exchange by another plan from now on; all ranks call it with nothing on the network."""
        self.context.exchange.follow(plan)
        self.meter.forget()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residuals, the steps taken, and what observers keep."""
        self.feedback.steps_done = self.context.step
        state = self.feedback.state_dict()
        for each in self._observers:
            state |= each.state()
        return sealed(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Adopt what ``state_dict`` returned on this rank, or raise ``StateError`` and change nothing."""
        self.feedback.check_state(state)
        for each in self._observers:
            each.load(state)
        self.feedback.load_state_dict(state)
        if self.feedback.steps_done is not None:
            self.context.resume(self.feedback.steps_done)

    def check(self) -> None:
        """Raise ``ExchangeError`` with the front end's remedy once the exchange has failed or is closed."""
        self.context.check()

    def fail(self, error: GradwireError) -> BaseException:
        """End the exchange with ``error``, of which the peers learn, and return the error to raise."""
        return self.context.fail(error)

    def end(self) -> None:
        """Let the thread close the link and end once it has done what is queued; return at once."""
        context, thread = self.context, self._communication
        if context.owns_link and thread is None:
            context.exchange.close()
        if thread is not None:
            if context.owns_link:
                thread.put(CallWork(context, "the link", lambda exchange: exchange.close(), None))
            thread.end()

    def close(self) -> None:
        """End the thread and close the link; may be called twice. Raises ``LinkTimeoutError``."""
        context = self.context
        context.is_closed = context.is_closed or context.exchange.transport.failure is None
        self.end()
        if self._communication is not None:
            self._communication.close(max((work.nbytes // 4 for work in self._pending), default=0))

    def _thread(self) -> CommunicationThread:
        if self._communication is None:
            self._communication = CommunicationThread(self.context)
        return self._communication

    def _next_timeout_s(self) -> float:
        """Return how long the next bucket may wait for a peer.

        The first one of a step cannot be averaged before all ranks have come to it, however long one has
        evaluated or saved alone; a rank that has its average knows that all have begun.
        """
        return self.context.timeout_s if self._has_begun else self.context.begin_timeout_s

    def _watch(self, work: BucketWork) -> None:
        for observer in self._observers:
            found = self._observed(observer.bucket, work)
            if found is not NULL_BUCKET:
                work.observers.append(found)

    def _started_native(self, work: BucketWork) -> bool:
        """Start the native all-reduce of a bucket, if it may be one, and return whether that was possible.

        Until the thread has a bucket of the step, all ranks know the same lengths.
        """
        if not self._may_start_native or any(each.wants_alone for each in work.observers):
            return False
        try:
            return work.start_native()
        except ExchangeError as error:
            raise self.fail(error) from error.__cause__

    def _start_on_thread(self, work: BucketWork, bucket: GradientBucket) -> None:
        self._may_start_native = False
        plan, layout, views, feedback = self.plan, bucket.layout, bucket.request.views, bucket.feedback
        if layout is not None and views is None and plan.places_parameters:
            views = self.layouts.views(layout, plan, self.context.world)
        if layout is not None and feedback is None and plan.keeps_residual:
            feedback = feedback_by_name(self.feedback, layout, bucket.tensor)
        average = work.request.average and work.active is None
        work.request = replace(work.request, average=average, views=views, timeout_s=work.timeout_s)
        work.feedback = NO_FEEDBACK if feedback is None else feedback
        work.stage()
        self._thread().put(work)

    def _observed(self, call: Callable[..., T], *given: object) -> T:
        """Call an observer and return its answer; where it breaks, the step ends on all ranks.

        What it raises in gradwire's own words is an answer of all ranks, such as that their replicas differ.
        """
        try:
            return call(*given)
        except GradwireError:
            raise
        except Exception as error:
            name, step = getattr(call, "__qualname__", repr(call)), self.context.steps_done + 1
            what = f"rank {self.context.rank}: {name} failed in step {step}: {error!r}"
            raise self.fail(ExchangeError(what)) from error
