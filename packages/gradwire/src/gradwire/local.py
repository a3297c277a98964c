"""D-Sync: synchronous data-parallel SGD over an all-reduce, the baseline in figure 1b of Pipe-SGD."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter

import torch
from torch import nn

from gradwire.autotune.initial_plan import InitialPlan
from gradwire.autotune.rules import whole
from gradwire.autotune.settings import Auto
from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError, TensorError
from gradwire.plan import PlanLike
from gradwire.sync.flat import FlatGradients
from gradwire.sync.flat_buckets import Alone, FlatBuckets, UsedParameters
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.method import Group, WorkerMethod
from gradwire.sync.trained import check_optimizer
from gradwire.sync.used_parameters import Reach, backward, checked_loss, run_backward
from gradwire.sync.work import BucketWork


class BackwardOverlap:
    """The bucket-by-bucket averaging of ``gradients``, which overlaps the backward pass.

    As in ``DistributedDataParallel`` (Li et al., VLDB 2020, section 3.2.3), a bucket's exchange starts as
    soon as all of its gradients are ready. Every rank starts the buckets in the order of ``buckets``, so a
    bucket that is ready early waits for its turn. A parameter without a gradient is ready when backward ends,
    with the gradient 0.

    The hooks that detect gradients exist only during backward. Therefore they run after the user's hooks,
    whose changes are exchanged, and a backward pass within ``compute_loss`` (an accumulation over smaller
    batches) isn't mistaken for the step's backward pass.
    """

    def __init__(self, sync: GradientSync, gradients: FlatGradients, buckets: FlatBuckets) -> None:
        self._sync, self._gradients, self._buckets, self._cut = sync, gradients, buckets, buckets.cut
        self._bucket_of = {
            index: number for number, bucket in enumerate(self._cut) for index in bucket.parameters
        }
        self._waiting_for: list[set[int]] = []
        self._works: list[BucketWork] = []
        self._used: Reach | None = None

    def average(self, compute_loss: Callable[[], torch.Tensor]) -> tuple[float, StepRecord]:
        """Compute gradients and average them over all ranks, and return the loss and the cost of waiting.

        Raises the errors of ``compute_loss`` and of the exchange, and ``TensorError``. After an error while a
        bucket is in flight, ranks are out of step: the link is closed, and later calls raise
        ``ExchangeError``.
        """
        self._sync.context.exchange.transport.check()
        self._works, self._used = [], None
        self._waiting_for = [set(bucket.parameters) for bucket in self._cut]
        self._gradients.zero()
        loss = checked_loss(compute_loss())
        try:
            with self._watching():
                run_backward(loss)
            self._start_rest()
            started = perf_counter()
            cost = sum((work.wait() for work in self._works), ExchangeCost())
            waits = StepRecord.of_wait(perf_counter() - started, cost)
            self._gradients.attach(() if self._used is None else self._used.absent)
        except BaseException as error:
            if self._works:
                self._give_up(error)
            raise
        return float(loss.detach()), waits

    @contextmanager
    def _watching(self) -> Iterator[None]:
        handles = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._note, index)
            )
            for index, parameter in enumerate(self._gradients.parameters)
            if parameter.requires_grad  # it may be frozen by now
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _note(self, index: int, _parameter: torch.Tensor) -> None:
        """Record that the gradient of parameter ``index`` is ready, and start complete buckets.

        Raises ``TensorError`` if its bucket was already started.
        """
        number = self._bucket_of[index]
        if number < len(self._works):
            raise TensorError(self._too_late(index, "a second gradient arrived"))
        self._gradients.collect_one(index)
        self._waiting_for[number].discard(index)
        while len(self._works) < len(self._cut) and not self._waiting_for[len(self._works)]:
            self._start_next()

    def _start_rest(self) -> None:
        """Start the remaining buckets, with zeros for unused parameters.

        Raises ``TensorError`` if a gradient was replaced after its bucket was started.
        """
        for number, bucket in enumerate(self._cut):
            is_started = number < len(self._works)
            for index in bucket.parameters:
                if is_started and not self._gradients.is_attached(index):
                    raise TensorError(self._too_late(index, "its .grad was replaced"))
                self._gradients.collect_one(index)
            if not is_started:
                self._start_next()

    def _start_next(self) -> None:
        number, observer = len(self._works), Alone()
        if number + 1 == len(self._cut):  # all gradients are ready
            self._used = Reach(self._gradients)
            observer = UsedParameters(self._used)
        self._works.append(self._buckets.start(self._gradients, number, observer))

    def _give_up(self, error: BaseException) -> None:
        self._sync.cancel()
        context = self._sync.context
        failure = ExchangeError(
            f"rank {context.rank}: step {context.steps_done + 1} failed with buckets in flight "
            f"({str(error) or type(error).__name__}), so the ranks are out of step; restart with new links"
        )
        failure.__cause__ = error
        self._sync.fail(failure)

    def _too_late(self, index: int, what: str) -> str:
        shape = tuple(self._gradients.parameters[index].shape)
        return (
            f"parameter {index}, of shape {shape}: {what} while its bucket was in flight; use one bucket, or "
            "remove code that computes gradients in pieces (checkpoints with use_reentrant=True) or changes "
            "them later (queued callbacks)"
        )


class DSync(WorkerMethod):
    """Synchronous SGD: each step averages its gradient over all ranks, and applies the average.

    ``w[t] = w[t-1] - lr * mean(g[t])``, where ``g[t]`` was computed at ``w[t-1]``. A step takes
    ``l_up + l_comp + l_comm`` (Pipe-SGD, equation 2) with one bucket. If the plan's ``bucket_nbytes`` divides
    the gradient into several buckets, a communication thread exchanges finished buckets while backward
    computes the others.

    Parameters
    ----------
    model
        Dense float32 parameters on one device. Raises ``TensorError`` otherwise.
    optimizer
        A ``torch.optim`` optimizer whose ``step`` needs no closure.
    plan
        An argument of ``Plan.of``; its ``pipeline`` is ignored. By default, or with ``"auto"`` or an
        ``Auto``, the run measures and chooses a plan.
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
        initial = InitialPlan.of(plan)
        chosen = initial.plan.for_whole_gradients("DSync")
        choose = partial(initial.chooser, whole(chosen.pipeline))
        super().__init__(model, optimizer, chosen, group, timeout_s, ledger, strict, choose=choose)

    def _lay_out(self) -> None:
        on_device = self.plan.encodes_on_device
        self._gradients = FlatGradients(self.trained.parameters, with_frozen=True, on_device=on_device)
        self._buckets = self._buckets_of(self._gradients, self.plan.bucket_nbytes)
        self._overlap = BackwardOverlap(self.sync, self._gradients, self._buckets)

    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        started = perf_counter()
        average = self._average if len(self._buckets.cut) == 1 else self._overlap.average
        loss, waits = average(compute_loss)
        self.trained.shield()
        self._optimizer.step()
        return waits.within(perf_counter() - started, loss=loss)

    def _average(self, compute_loss: Callable[[], torch.Tensor]) -> tuple[float, StepRecord]:
        """Average the whole gradient as one bucket."""
        loss, used = backward(compute_loss, self._gradients), Reach(self._gradients)
        cost = self._buckets.run(self._gradients, UsedParameters(used))
        self._gradients.attach(used.absent)
        return loss, StepRecord.of_wait(cost.total_s, cost)
