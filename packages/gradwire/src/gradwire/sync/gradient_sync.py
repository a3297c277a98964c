"""``GradientSync``: the synchronisation of one model's gradients on one rank, for every front end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from gradwire.checkpoints import sealed
from gradwire.costs import ExchangeCost
from gradwire.errors import AttachError, ExchangeError, GradwireError
from gradwire.exchange import Exchange
from gradwire.log import LOG, open_log
from gradwire.plan import Plan
from gradwire.sync.bucket.encoding_error import EncodingErrorMeter, Verdict
from gradwire.sync.bucket.error_feedback import NO_FEEDBACK, BucketResiduals
from gradwire.sync.bucket.observe import NULL_BUCKET, PlanChooser, StepCost, StepObserver
from gradwire.sync.bucket.residual import Residuals
from gradwire.sync.bucket.work import BucketWork, GradientBucket, Route, why_bypassed
from gradwire.sync.context import SyncContext, SyncOptions
from gradwire.sync.group import AFTER_AGREEING, agree, connect, facts_of
from gradwire.sync.layout import Layouts
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.thread import CallWork, Lanes, Work
from gradwire.units import counted

T = TypeVar("T")


class GradientSync:
    """The object that averages one model's gradients on one rank, bucket by bucket.

    A step calls, in this order on all ranks: ``begin``, ``start`` for each bucket, ``finish``. The
    communication thread starts with the first bucket that needs it. The observers of steps and buckets are
    called in order, after ``meter``, which measures the encoding errors.
    """

    def __init__(
        self,
        context: SyncContext,
        layouts: Layouts,
        residuals: Residuals,
        observers: Sequence[StepObserver] = (),
    ) -> None:
        self.context, self.layouts, self.residuals = context, layouts, residuals
        self.meter = EncodingErrorMeter(context, layouts.names)
        self._observers: tuple[StepObserver, ...] = (self.meter, *observers)
        self._lanes = Lanes(context)
        self._lanes.follow(context.plan)
        self._pending = deque[Work]()  # work that ``finish`` waits for, oldest first
        self._counted = StepCost(0)  # the cost that ``count`` has added in the current step
        self._active: int | None = None
        self._is_in_step = self._has_begun = self._may_start_native = False
        self._begun_lanes = set[SyncContext]()  # contexts whose thread has a bucket of this step
        context.link.step = context.step
        open_log()
        for each in self._observers:
            each.connected(context)
        if context.rank == 0:
            intentions = [each.intention for each in self._observers if isinstance(each, PlanChooser)]
            intention = next(filter(None, intentions), f"over {context.plan.algorithm}")
            hosts, ranks = counted(context.link.hosts, "host"), counted(context.world, "rank")
            LOG.info("%s, %s, %s", hosts, ranks, f"{context.plan.codec} {intention}")

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
    ) -> GradientSync:
        """Agree with all ranks of a group on plan, options and ``facts``, and connect to these ranks.

        Without ``ledger``, the context gets a new ``Ledger``. Raises ``AttachError`` on all ranks if a rank
        has different settings, refuses, or is late.
        """
        own = {"strict": str(options.strict), "world": str(dist.get_world_size(group))}
        agree(group, {**facts_of(plan), **own, **facts}, options.timeout_s)
        link = connect(group, options.timeout_s, AttachError, f"; {AFTER_AGREEING}", tos=plan.tos)
        book = Ledger(link.rank) if ledger is None else ledger
        exchange = Exchange(link, plan)
        context = SyncContext(exchange, options, book, group, remedy=remedy, late_advice=late_advice)
        try:
            residuals = Residuals(plan, context.rank, context.world, layouts.counts)
            return cls(context, layouts, residuals, observers)
        except BaseException:
            context.exchange.close()
            raise

    @property
    def plan(self) -> Plan:
        """The plan in use, the same on all ranks."""
        return self.context.plan

    @property
    def steps_done(self) -> int:
        """The number of steps that this process has completed."""
        return self.context.steps_done

    def begin(self, *, active: int | None = None) -> None:
        """Begin a step, before its first bucket. A second call for a step drops the step's buckets so far.

        Calls the observers, of which at most one changes the plan, and raises their errors. With ``active``,
        averages are over this number of ranks instead of all ranks.
        """
        context = self.context
        context.check()
        step = context.steps_done + 1
        self._is_in_step = True
        self._pending = deque(each for each in self._pending if each.step != step)
        if all(each.is_done() for each in self._pending):  # else the thread still works on an earlier step
            context.link.step = context.steps_before + step
        self._active, self._has_begun, self._counted = active, active is not None, StepCost(0)
        self._begun_lanes.clear()
        plans = [plan for each in self._observers if (plan := self._observed(step, each.begin, step, self))]
        assert len(plans) <= 1, "one observer chooses plans"
        for plan in plans:  # nothing is on the network now
            self.follow(plan)
        self._may_start_native = context.exchange.starts and active is None

    def start(self, bucket: GradientBucket) -> BucketWork:
        """Start the all-reduce of one bucket; all ranks start the same buckets in the same order.

        The bucket is averaged in place, on the route that this call chooses. Do not access the bucket before
        the returned work is done. Raises ``ExchangeError`` once the exchange has failed or is closed.
        """
        context = self.context
        context.check()
        lane = self._lanes.of(bucket.index)
        work = BucketWork(lane, bucket, context.steps_done + 1, self.meter.count)
        reason = why_bypassed(bucket.tensor)
        work.active, work.timeout_s = self._active, self._next_timeout_s(lane, is_bypassed=reason is not None)
        if reason is not None:
            if context.ledger is not None:
                context.ledger.bypassed(reason, f"bucket {bucket.index}", bucket.tensor.nbytes)
            work.bypass()
        self._watch(work)
        if reason is None and not self._started_native(work):
            self._start_on_thread(work, bucket)
        self._has_begun = self._has_begun or work.route is not Route.BYPASS or not work.is_done()
        self._pending.append(work)
        if bucket.is_last:
            self.agree()
        return work

    def run(self, bucket: GradientBucket, values: torch.Tensor, context: SyncContext) -> BucketWork:
        """Exchange one bucket on the calling thread, over a link of the same model; return the finished work.

        ``values`` has the bucket's floats, exchanged in place. The caller then stores the averages and calls
        ``count``, or, on an error, ``context.fail``.
        """
        work = BucketWork(context, bucket, self.context.steps_done + 1)
        work.feedback = NO_FEEDBACK if bucket.feedback is None else bucket.feedback
        self._watch(work)
        work.exchange_values(context.exchange, values)
        return work

    def count(self, work: BucketWork, wait_s: float) -> None:
        """Count work returned by ``run``, for which the training thread waited ``wait_s`` seconds."""
        self.meter.count(work, wait_s)
        self._counted = StepCost(0, self._counted.wait_s + wait_s, self._counted.exchange + work.cost)

    def gathered(self, name: str, count: int, cost: ExchangeCost, wait_s: float) -> None:
        """Count an all-gather of ``count`` weights, for which training waited ``wait_s`` seconds."""
        self.context.count(name, cost, wait_s)
        for each in self._observers:
            self._observed(self.steps_done + 1, each.gathered, count, wait_s)

    def agree(self) -> None:
        """Start the agreement of all ranks on a ``LossyError`` after a step's last bucket, as ``start`` does.

        Does nothing unless options are strict and the step's errors are measured.
        """
        step = self.context.steps_done + 1
        if self.meter.agrees(step):
            buckets = (each for each in self._pending if isinstance(each, BucketWork))
            earlier = [each for each in buckets if each.route is Route.THREAD]
            verdict = Verdict(self.context, self.meter, step, earlier)
            self._pending.append(verdict)
            self._lanes.put(verdict)

    def observe(self, observer: StepObserver) -> None:
        """Add an observer of the following steps; all ranks call this between the same two steps."""
        observer.connected(self.context)
        self._observers = (*self._observers, observer)

    def collect(self, until: int | None = None, waited_s: float = 0.0) -> StepCost:
        """Wait for the buckets of a step, store their encoding errors as residuals, and count the step.

        Pipelines wait only for the buckets of steps up to ``until``, numbered as in ``steps_done``;
        ``waited_s`` are the seconds that they have already waited. ``BucketResiduals`` change only if all of
        the step's averages are finite, which is the same on all ranks, because averages have the same bits; a
        ``FlatResidual`` has changed in the exchange. Raises the exchange's error; unfinished work then stays
        pending.
        """
        began, done = perf_counter(), list[Work]()
        cost, self._counted, before_s = self._counted.exchange, StepCost(0), self._counted.wait_s
        while self._pending and (until is None or self._pending[0].step <= until):
            cost += self._pending[0].wait()
            done.append(self._pending.popleft())
        feedback = [each.feedback for each in done if isinstance(each, BucketWork)]
        if all(each.usable for each in feedback):
            for each in feedback:
                each.keep()
        self.context.steps_done += 1
        self._is_in_step = False
        found = StepCost(self.context.step, before_s + waited_s + perf_counter() - began, cost)
        for observer in self._observers:
            self._observed(self.steps_done, observer.end, found)
        return found

    def end_step(self) -> None:
        """End the ledger's step, and warn of repeated large encoding errors.

        Raises ``LossyError`` if all ranks agreed to; training can then continue with the next step.
        """
        self.meter.end_step()

    def finish(self, until: int | None = None, waited_s: float = 0.0) -> StepCost:
        """End a training step: ``collect``, then ``end_step``."""
        found = self.collect(until, waited_s)
        self.end_step()
        return found

    def settle(self) -> None:
        """Wait for all pending work without ending a step. Raises the exchange's error."""
        for work in self._pending:
            work.wait()

    def cancel(self) -> None:
        """Cancel pending work that has not started, and forget the started work, without ending a step."""
        for work in reversed(self._pending):  # newest first, so that no work runs after cancelled work
            work.cancel()
        self._pending.clear()
        self._is_in_step = False

    def resume(self, steps_done: int) -> None:
        """Resume after ``steps_done`` steps, cancelling pending work."""
        self.cancel()
        context = self.context
        context.steps_before, context.steps_done, context.link.step = 0, steps_done, steps_done

    def lay_out(self, layouts: Layouts) -> None:
        """Change the positions of parameters in buckets, while no exchange is running."""
        self.layouts = layouts
        self.meter.follow(layouts.names)

    def exchange_now(self, what: str, call: Callable[[Exchange], T]) -> T:
        """Run ``call`` on the communication thread, while no other exchange is running; return its value.

        All ranks make the same call between the same two steps; ``what`` names it in errors, as a noun
        phrase. The call limits its own waits, usually to ``begin_timeout_s``. Its errors end the exchange,
        and are raised here. Raises ``LinkTimeoutError`` if the thread stays busy.
        """
        self.context.check()
        context, what = self.context, f"{what} before step {self.context.steps_done + 1}"
        work = CallWork(context, what, call, context.begin_timeout_s, context.step + self._is_in_step)
        self._lanes.put(work)
        work.wait()
        return work.value

    def connect_lanes(self, number: int) -> str:
        """Connect up to this number of lanes; return why a rank can't, or ``""`` (``Lanes.extend``)."""
        return self._lanes.extend(number, self.exchange_now)

    def follow(self, plan: Plan) -> None:
        """Switch to a different plan; all ranks call this while no exchange is running."""
        try:
            self._lanes.follow(plan)
        except AttachError as error:
            raise self.fail(error) from error
        self.meter.forget()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residuals, the number of completed steps, and the observers' states."""
        self.residuals.steps_done = self.context.step
        state = self.residuals.state_dict()
        for each in self._observers:
            state |= each.state()
        return sealed(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that ``state_dict`` returned on this rank, or raise ``StateError``."""
        self.residuals.check_state(state)
        for each in self._observers:
            each.load(state)
        self.residuals.load_state_dict(state)
        if self.residuals.steps_done is not None:
            self.context.resume(self.residuals.steps_done)

    def check(self) -> None:
        """Raise ``ExchangeError`` with the front end's remedy if the exchange has failed or is closed."""
        self.context.check()

    def fail(self, error: GradwireError) -> BaseException:
        """End the exchange with ``error``, notify the peers, and return the error to raise."""
        return self.context.fail(error)

    def end(self) -> None:
        """Close the link and end the thread after its queued work; return at once."""
        self._lanes.end()

    def close(self) -> None:
        """Close the link and join the thread; may be called twice. Raises ``LinkTimeoutError``."""
        context = self.context
        context.is_closed = context.is_closed or context.exchange.transport.failure is None
        self._lanes.close(sum(work.nbytes for work in self._pending) // 4)

    def _next_timeout_s(self, lane: SyncContext, *, is_bypassed: bool) -> float:
        """Return the limit of the next bucket's waits for a peer, in seconds.

        Before a step, one rank may evaluate or save alone. So the step's first bucket waits for the other
        ranks up to ``begin_timeout_s``; its average shows that all ranks have begun. The first bucket on
        another lane may run before that, so it has the same limit. A bypassed bucket is waited for after all
        earlier buckets, so its limit is ``timeout_s``.
        """
        if self._has_begun and (is_bypassed or self._active is not None or lane in self._begun_lanes):
            return self.context.timeout_s
        return self.context.begin_timeout_s

    def _watch(self, work: BucketWork) -> None:
        found = [self._observed(work.step, each.bucket, work) for each in self._observers]
        work.observers += [each for each in found if each is not NULL_BUCKET]

    def _started_native(self, work: BucketWork) -> bool:
        if not self._may_start_native or any(each.wants_alone for each in work.observers):
            return False
        try:
            return work.start_native()
        except ExchangeError as error:
            raise self.fail(error) from error.__cause__

    def _start_on_thread(self, work: BucketWork, bucket: GradientBucket) -> None:
        self._may_start_native = False
        self._begun_lanes.add(work.context)
        plan, layout, views, feedback = self.plan, bucket.layout, bucket.request.views, bucket.feedback
        if layout is not None and views is None and plan.places_parameters:
            views = self.layouts.views(layout, plan, self.context.world)
        if layout is not None and feedback is None and plan.keeps_residual:
            pairs = zip(layout.names, layout.counts, strict=True)
            own = (self.residuals.of(name, count, bucket.tensor) for name, count in pairs)
            feedback = BucketResiduals([each for each in own if each is not None])
        average = work.request.average and work.active is None
        work.request = replace(work.request, average=average, views=views, timeout_s=work.timeout_s)
        work.feedback = NO_FEEDBACK if feedback is None else feedback
        work.stage()
        self._lanes.put(work)

    def _observed(self, step: int, call: Callable[..., T], *given: object) -> T:
        """Call an observer and return its value; an unexpected exception ends the exchange on all ranks.

        A ``GradwireError`` is raised unchanged, because all ranks raise it, for example if replicas differ.
        """
        try:
            return call(*given)
        except GradwireError:
            raise
        except Exception as error:
            name = getattr(call, "__qualname__", repr(call))
            what = f"rank {self.context.rank}: {name} failed in step {step}: {error!r}"
            raise self.fail(ExchangeError(what)) from error
