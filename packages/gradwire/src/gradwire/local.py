"""D-Sync: synchronous data-parallel SGD over an all-reduce, the baseline of Pipe-SGD (its figure 1b)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from time import perf_counter

import torch
from torch import nn

from gradwire.autotune.settings import Auto
from gradwire.autotune.worker_method import WorkerMethod
from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError, TensorError
from gradwire.exchange import Exchange
from gradwire.plan import PlanLike
from gradwire.sync.buckets import cut
from gradwire.sync.flat import FlatGradients
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.ledger.ledger import Ledger, profiled
from gradwire.sync.method import Group
from gradwire.sync.thread import WHOLE, Buckets, average
from gradwire.sync.trained import check_optimizer
from gradwire.sync.used_parameters import Reach, backward, checked_loss, run_backward
from gradwire.sync.work import Work

# Exchange a gradient's buckets while backward still computes the rest of it.
#
# As ``DistributedDataParallel`` does with its hooks (Li et al., VLDB 2020, section 3.2.3): a bucket goes out
# as soon as all of its gradients are there, in an order that all ranks share.


class Overlap:
    """Averages ``gradients`` bucket by bucket on a communication thread, beginning during backward.

    Every rank hands its buckets over in the order of ``buckets``; one that is ready early waits for its turn.
    A parameter that backward does not reach is ready, with the gradient 0, when backward ends.

    The hooks that tell which gradients are there exist during backward only. So they run after any hook of
    the user's, whose changes are exchanged, and a backward pass within ``compute_loss`` (an accumulation over
    smaller batches) is not mistaken for the last one.
    """

    def __init__(self, exchange: Exchange, gradients: FlatGradients, buckets: Buckets) -> None:
        self._exchange, self._gradients, self._buckets = exchange, gradients, buckets
        self._cut = buckets.cut
        self._reach: Reach | None = None
        self._bucket_of = {
            index: number for number, bucket in enumerate(self._cut) for index in bucket.parameters
        }
        self._waiting_for: list[set[int]] = []
        self._handovers: list[Work] = []
        self._step = 0

    def average(self, step: int, compute_loss: Callable[[], torch.Tensor]) -> tuple[float, StepRecord]:
        """Fill the gradients with their averages over all ranks; return the loss, and what waiting cost.

        Raises what ``compute_loss`` and the exchange raise, and ``TensorError``. An error after the first
        bucket has gone out leaves the ranks out of step: the link is closed then, and later calls raise
        ``ExchangeError``.
        """
        self._exchange.transport.check()
        self._step, self._handovers, self._reach = step, [], None
        self._waiting_for = [set(bucket.parameters) for bucket in self._cut]
        self._gradients.zero()
        loss = checked_loss(compute_loss())
        try:
            with self._watching():
                run_backward(loss)
            self._hand_over_rest()
            waits = self._wait()
            self._gradients.attach(() if self._reach is None else self._reach.absent)
        except BaseException as error:
            if self._handovers:
                self._give_up(error)
            raise
        return float(loss.detach()), waits

    def abort(self) -> None:
        """Drop the buckets that have not been sent."""
        for handover in self._handovers:
            handover.cancel()

    def close(self) -> None:
        """Join the thread. Raises ``LinkTimeoutError`` if it does not end."""
        self._buckets.close()

    @contextmanager
    def _watching(self) -> Iterator[None]:
        handles = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._note, index)
            )
            for index, parameter in enumerate(self._gradients.parameters)
            if parameter.requires_grad  # it may have been frozen since
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _note(self, index: int, _parameter: torch.Tensor) -> None:
        """Note that the gradient of parameter ``index`` is there. Raises ``TensorError`` if it came twice."""
        number = self._bucket_of[index]
        if number < len(self._handovers):
            raise TensorError(self._too_late(index, "a second gradient arrived"))
        self._gradients.collect_one(index)
        self._waiting_for[number].discard(index)
        while len(self._handovers) < len(self._cut) and not self._waiting_for[len(self._handovers)]:
            self._hand_over_next()

    def _hand_over_rest(self) -> None:
        """Count what backward did not reach as zero. Raises ``TensorError`` if a gradient was replaced."""
        for number, bucket in enumerate(self._cut):
            gone = number < len(self._handovers)
            for index in bucket.parameters:
                if gone and not self._gradients.is_attached(index):
                    raise TensorError(self._too_late(index, "its .grad was replaced"))
                self._gradients.collect_one(index)
            if not gone:
                self._hand_over_next()

    def _hand_over_next(self) -> None:
        number = len(self._handovers)
        if number + 1 == len(self._cut):  # now all gradients are there
            self._reach = Reach(self._gradients)
        handover = self._buckets.hand_over(self._step, self._gradients, number, self._reach)
        self._handovers.append(handover)

    def _wait(self) -> StepRecord:
        started = perf_counter()
        accounting = sum(map(Work.wait, self._handovers), ExchangeCost())
        return StepRecord.of_wait(perf_counter() - started, accounting)

    def _give_up(self, error: BaseException) -> None:
        self.abort()
        failure = ExchangeError(
            f"rank {self._exchange.link.rank}: step {self._step} was left with some of its buckets on their "
            f"way ({str(error) or type(error).__name__}), so the ranks are out of step; begin with new links"
        )
        failure.__cause__ = error
        self._buckets.thread.give_up(failure)

    def _too_late(self, index: int, what: str) -> str:
        shape = tuple(self._gradients.parameters[index].shape)
        return (
            f"parameter {index}, of shape {shape}: {what} when its bucket was on its way; use one bucket, or "
            "leave out what computes gradients in pieces (checkpoints with use_reentrant=True) or changes "
            "them later (queued callbacks)"
        )


class DSync(WorkerMethod):
    """Average every step's gradient over all ranks, then update with it.

    ``w[t] = w[t-1] - lr * mean(g[t])``, where ``g[t]`` was computed at ``w[t-1]``. A step takes
    ``l_up + l_comp + l_comm`` (Pipe-SGD, equation 2) with one bucket. Where the plan's ``bucket_nbytes`` cuts
    the gradient into several, a communication thread exchanges the buckets that backward has finished while
    it computes the others.

    Parameters
    ----------
    model
        Dense float32 parameters on one device. Raises ``TensorError`` otherwise.
    optimizer
        Any ``torch.optim`` optimizer whose ``step`` needs no closure.
    plan
        What ``Plan.of`` reads; its ``pipeline`` does not count. By default, or with ``"auto"`` or an
        ``Auto``, the run measures and chooses a plan itself.
    strict, group, timeout_s, ledger
        See ``Method``.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: PlanLike | Auto = None,
        *,
        strict: bool = False,
        group: Group = None,
        timeout_s: float = 30.0,
        ledger: Ledger | None = None,
    ) -> None:
        check_optimizer(optimizer, "DSync")
        self._optimizer = optimizer
        auto, first = Auto.begin(plan)
        chosen = first.for_whole_gradients("DSync")
        super().__init__(model, optimizer, chosen, group, timeout_s, ledger, strict, auto)

    def _lay_out(self) -> None:
        on_device = self.plan.encodes_on_device
        self._gradients = FlatGradients(self.trained.parameters, with_frozen=True, on_device=on_device)
        self._residual = self._residual_of(self._gradients)
        self._views = self.meter.views(self.exchange, self.meter.all)
        self._overlap: Overlap | None = None
        if len(cut(self._gradients.counts, self.plan.bucket_nbytes)) > 1:
            buckets = Buckets(self.exchange, self.meter, self._gradients, self._residual)
            self._overlap = Overlap(self.exchange, self._gradients, buckets)

    def _before_growing(self) -> StepRecord:
        self._end()
        return StepRecord()

    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        started = perf_counter()
        if self._overlap is None:
            loss = backward(compute_loss, self._gradients)
            self._sample(self._gradients)
            accounting = self._average()
            waits = StepRecord.of_wait(accounting.total_s, accounting)
        else:
            loss, waits = self._overlap.average(self.steps_done + 1, compute_loss)
        self.trained.shield()
        self._optimizer.step()
        return waits.within(perf_counter() - started, loss=loss)

    def _average(self) -> ExchangeCost:
        """Exchange the whole gradient as one bucket."""
        buffer, step = self._gradients.buffer, self.steps_done + 1
        reach = Reach(self._gradients)
        measure = self.meter.measure(step, self.meter.all)
        with nullcontext() if self.ledger is None else profiled(f"exchange {WHOLE}"):
            waiting = reach.parts(self._residual)
            way = self.exchange, self._views, self.meter, step, self._gradients.staged(), measure
            accounting = average(*way, self._residual, waiting, reach)
        self._gradients.attach(reach.absent)
        self.meter.count(WHOLE, accounting, accounting.total_s, buffer.nbytes, measure)
        return accounting

    def _end(self) -> None:
        if self._overlap is not None:
            self._overlap.close()

    def _cancel(self) -> None:
        if self._overlap is not None:
            self._overlap.abort()
