"""The rounds of DDP's hook: a backward pass hands its buckets over, one by one, and ends with averages.

DDP calls a hook with its buckets in the order of their numbers, on all ranks, also where backward fills them
in another order (a bucket whose turn has not come waits: ``Reducer::mark_bucket_ready``), and after it has
cut the buckets anew (rank 0's cut is everyone's).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial

import torch
import torch.distributed as dist
from torch.autograd import Variable

from gradwire.autotune.pilot import Pilot, SampledBucket
from gradwire.costs import ExchangeCost
from gradwire.ddp.between_steps import BetweenSteps
from gradwire.ddp.buckets import Apart, Averaged, BucketLayouts, Bypasses, DDPBucket, awaited
from gradwire.devices import Staged, Staging
from gradwire.errors import ExchangeError, GradwireError, TensorError, copied
from gradwire.exchange import Exchange
from gradwire.exchange.on_device import divide
from gradwire.exchange.request import BucketRequest, Reducer
from gradwire.exchange.views import ParameterViews
from gradwire.sync.buckets import float_count, float_shape
from gradwire.sync.error_feedback import BucketResiduals
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.meter import LostMeter, Measure
from gradwire.sync.residual import Residuals
from gradwire.sync.thread import CommunicationThread, Handover


class Rounds:
    """Averages the buckets of one model's backward passes over the ranks of its group.

    The exchange is the communication thread's from now on, but for buckets that go past it (``Apart``);
    gradients that no codec takes go through ``group``. ``names`` are what residuals of the model's parameters
    are kept under. A rank waits ``begin_timeout_s`` for the others to begin a step, the link's timeout where
    it is None. ``pilot`` chooses the plan from step to step, if there is one. See ``attach``.

    Attributes
    ----------
    steps_before
        How many steps the run had taken before this exchange, by the checkpoint that was loaded.
    between
        What all ranks do together between two steps.
    """

    def __init__(
        self,
        exchange: Exchange,
        group: dist.ProcessGroup,
        names: Mapping[torch.Tensor, str],
        residuals: Residuals,
        ledger: Ledger,
        begin_timeout_s: float | None = None,
        strict: bool = False,
        pilot: Pilot | None = None,
    ) -> None:
        self.rank = exchange.link.rank
        self.steps_done = self.steps_before = 0
        exchange.link.step = 0
        self._exchange, self._names = exchange, names
        self._residuals, self._pilot = residuals, pilot
        self._timeout_s = exchange.link.timeout_s
        self._begin_timeout_s = self._timeout_s if begin_timeout_s is None else begin_timeout_s
        self._meter = LostMeter(self.rank, exchange.plan, list(names.values()), ledger, strict)
        self._layouts = BucketLayouts(exchange, names)
        self._thread = CommunicationThread(exchange, self._meter, "attach with a longer timeout_s")
        self._apart = Apart(exchange, self._meter, self._begin_timeout_s, self.given_up)
        self._bypasses = Bypasses(group, self.rank, ledger, self.given_up)
        timeout_s = self._begin_timeout_s
        self.between = BetweenSteps(
            exchange, self._thread, timeout_s, self.check, lambda: self.steps_done + 1
        )
        self._closed = False
        self._next = 0
        self._active: int | None = None  # ranks that averages are over, where those are not all
        self._waits: list[Callable[[], object]] = []  # for the buckets of a round, in their order
        self._lent: list[BucketResiduals] = []

    def end(self) -> None:
        """Let the thread close the link and end once it has done what is queued; return at once."""
        self._thread.hand_over(Handover(None, "the link", self._close_link, done="closed"))
        self._thread.end()

    @property
    def step(self) -> int:
        """How many steps the run has taken, those before a checkpoint included."""
        return self.steps_before + self.steps_done

    def resume(self, step: int) -> None:
        """Count on from the step that a checkpoint was written after; older ones do not say."""
        self.steps_before = step - self.steps_done
        self._exchange.link.step = step

    @property
    def over(self) -> bool:
        """Whether no round can be any more: one has failed, or ``close`` was called."""
        return self._closed or self._exchange.transport.failure is not None

    def check(self) -> None:
        """Raise ``ExchangeError`` if no round can be any more."""
        if self._closed:
            raise ExchangeError(
                f"rank {self.rank}: this model's exchange is closed; wrap the module in a new "
                "DistributedDataParallel and attach that"
            )
        failure = self._exchange.transport.failure
        if failure is not None:
            raise ExchangeError(
                f"rank {self.rank}: this model's exchange has failed before ({failure}); wrap "
                "the module, whose weights are those of the last complete step, in a new "
                "DistributedDataParallel and attach that"
            )

    def take(self, bucket: DDPBucket, *, last_waits: bool, by_active: bool = False) -> Averaged:
        """Hand one bucket over; the last one of a round sees to it that backward ends when all are averaged.

        With ``last_waits`` that is waited for here, not in a callback of the autograd engine. With
        ``by_active``, the same on all ranks, averages are over the ranks that have not joined.
        """
        self.check()
        index, last = bucket.index(), bucket.is_last()
        if index != self._next:
            raise self._out_of_turn(index)
        if index == 0:
            self._waits, self._lent = [], []
            self._exchange.link.step = self.steps_before + self.steps_done + 1
            self._active = self.between.count_active() if by_active else None
            if self._pilot is not None:
                self._steer(self._pilot)
            unwatched = self._pilot is None or self._pilot.samples is None
            unwatched = unwatched and self.between.recorder is None
            self._apart.is_open = self._exchange.starts and unwatched and self._active is None
        self._next = 0 if last else index + 1
        averaged = self._bypasses.average(bucket, self._active, self._next_timeout_s(), self._waits)
        if averaged is None and self._apart.is_open:
            timeout_s, step = self._next_timeout_s(), self.steps_done + 1
            averaged = self._apart.start(bucket, timeout_s, step, self._waits)
        if averaged is None:
            self._apart.is_open = False
            handover, averaged = self._prepare(bucket)
            self._thread.hand_over(handover)
            if self.between.recorder is not None:
                self.between.recorder.handed_over(bucket.buffer().numel(), bucket.buffer().device)
        if self._pilot is not None:
            self._pilot.handed_over(bucket.buffer().numel())
        if last and self._meter.agrees(self.steps_done + 1):
            self._start_agreement()
        if last and (last_waits or not _queued_in_engine(self._finish)):
            self._finish()
        return averaged

    def _steer(self, pilot: Pilot) -> None:
        """Let the pilot of all ranks look at the run, and follow the plan that it chooses."""
        chosen = pilot.begin(self.steps_done + 1, self._exchange.plan, self.between.answer)
        if chosen is not None:  # nothing is on the network now
            self._exchange.follow(chosen)
            self._meter.judge(chosen)

    def close(self) -> None:
        """End the thread, which closes the link. Raises ``LinkTimeoutError`` if it does not end."""
        self._closed = self._closed or self._exchange.transport.failure is None
        self.end()
        self._thread.close(timeout_s=self._timeout_s)

    def _out_of_turn(self, index: int) -> GradwireError:
        """Return why bucket ``index`` cannot be averaged now; no later round can be any more."""
        return self.given_up(
            ExchangeError(
                f"rank {self.rank}: DDP handed bucket {index} over where bucket {self._next} was next, so "
                "the ranks may be out of step; did an earlier backward pass end half-way?"
            )
        )

    def given_up(self, failure: GradwireError) -> GradwireError:
        """Let the peers learn of ``failure``, and every later round end with it; return it."""
        self._thread.give_up(failure)
        return failure

    def _prepare(self, bucket: DDPBucket) -> tuple[Handover, Averaged]:
        """Return the thread's work on a bucket, and what DDP waits for."""
        buffer, timeout_s = bucket.buffer(), self._next_timeout_s()
        measured = self._meter.measures(self.steps_done + 1)
        measure = Measure(self._layouts.of(bucket) if measured else None)
        averaged, residuals = awaited(buffer), self._own_residuals(bucket)
        staged = Staged(buffer, staging=Staging(self._exchange.plan.encodes_on_device))
        reducer: Reducer = self._exchange.run
        views = self._layouts.views(bucket) if self._exchange.plan.places_parameters else None
        if self._pilot is not None:
            reducer = self._sampled(self._pilot, bucket, reducer)
        if self.between.recorder is not None:
            reducer = self.between.recorder.sampled(reducer, buffer)
        work = partial(self._average, reducer, views, staged, averaged, residuals, measure, timeout_s)
        name, step = f"bucket {bucket.index()}", self.steps_done + 1
        handover = Handover(name, f"{name} of step {step}", work, staged.nbytes, measure, timeout_s)
        handover.result.add_done_callback(partial(_pass_failure_on, averaged))
        self._waits.append(partial(self._thread.wait, handover))
        self._lent.append(residuals)
        return handover, averaged

    def _sampled(self, pilot: Pilot, bucket: DDPBucket, reducer: Reducer) -> Reducer:
        """Return what exchanges a bucket by ``reducer``, and samples it if the pilot wants this step's."""
        if pilot.samples is None:
            return reducer
        names, shapes = self._layouts.of(bucket).names, [float_shape(each) for each in bucket.parameters()]
        drawn = pilot.samples.drawn == bucket.index()
        return SampledBucket(reducer, self._exchange, pilot.samples, names, shapes, drawn).run

    def _own_residuals(self, bucket: DDPBucket) -> BucketResiduals:
        """Return the residuals of the bucket's parameters in its order: they outlive DDP's cut of buckets."""
        if not self._exchange.plan.keeps_residual:
            return BucketResiduals([])
        parameters = bucket.parameters()
        unknown = [tuple(parameter.shape) for parameter in parameters if parameter not in self._names]
        if unknown:
            raise self.given_up(
                TensorError(
                    f"rank {self.rank}: DDP averages a parameter of shape {unknown[0]} that the model does "
                    "not have any more, so its residual has no name; replace parameters before wrapping"
                )
            )
        beside = bucket.buffer()
        found = [self._residuals.of(self._names[each], float_count(each), beside) for each in parameters]
        return BucketResiduals([residual for residual in found if residual is not None])

    def _start_agreement(self) -> None:
        """Let the ranks agree, once all buckets are averaged, whether the round ends with an error."""
        measure = Measure()

        def agree() -> ExchangeCost:
            accounting, measure.verdict = self._meter.agree(self._exchange)
            return accounting

        what = f"the verdicts on step {self.steps_done + 1}"
        handover = Handover("verdicts", what, agree, 0, measure, self._timeout_s, done="exchanged")
        self._waits.append(partial(self._thread.wait, self._thread.hand_over(handover)))

    def _next_timeout_s(self) -> float:
        """Return how long the next bucket may wait for a peer.

        The first one of a step cannot be averaged before all ranks have come to it, however long one has
        evaluated or saved alone; whoever has its average knows that all have begun.
        """
        begun = self._waits or self._active is not None
        return self._timeout_s if begun else self._begin_timeout_s

    def _average(
        self,
        reducer: Reducer,
        views: ParameterViews | None,
        staged: Staged,
        averaged: Averaged,
        residuals: BucketResiduals,
        measure: Measure,
        timeout_s: float,
    ) -> ExchangeCost:
        """Average one bucket; on the communication thread."""
        values, active = staged.floats(), self._active
        with staged.stream.current:
            residual = residuals.lend(values)
            request = BucketRequest(
                average=active is None,
                views=views,
                residual=residual,
                norms=measure.norms,
                timeout_s=timeout_s,
            )
            accounting = reducer(values, request)
            if active is not None:
                divide(values, active)
            residuals.note(values, staged.tensor.dtype)
        accounting.device_nbytes += staged.crossing_nbytes
        staged.store()
        staged.stream.complete(averaged, staged.tensor)
        self._meter.note(measure)
        return accounting

    def _close_link(self) -> ExchangeCost:
        self._exchange.close()
        return ExchangeCost()

    def _finish(self) -> None:
        """Wait for the round's buckets, in their order; backward raises what this raises.

        Residuals change once all are averaged, and on all ranks or on none: averages have the same bits.
        """
        waits, self._waits = self._waits, []
        for wait in waits:
            wait()
        if self._pilot is not None:
            self._pilot.end()
        if self.between.recorder is not None:
            self.between.recorder.end()
        if all(residuals.usable for residuals in self._lent):
            for residuals in self._lent:
                residuals.keep()
        self.steps_done += 1
        # After DDP's own end: an error before it would leave DDP in the middle of a pass, of no further use.
        if not _queued_in_engine(self._meter.end_step):
            self._meter.end_step()


def _queued_in_engine(callback: Callable[[], None]) -> bool:
    """Let autograd call this when backward has ended, before DDP's own end; False outside of a backward pass.

    DDP queues its own after the last bucket's hook has returned. It waits for the futures without a limit and
    would turn their exceptions into a ``RuntimeError`` about types.
    """
    try:
        Variable._execution_engine.queue_callback(callback)
    except RuntimeError:
        return False
    return True


def _pass_failure_on(averaged: Averaged, outcome: Future[ExchangeCost]) -> None:
    error = outcome.exception()
    if error is not None and not averaged.done():
        failure = error if isinstance(error, Exception) else ExchangeError(repr(error))
        averaged.set_exception(copied(failure))  # type: ignore[arg-type]
