"""D-Sync: synchronous data-parallel SGD over an all-reduce, the baseline in figure 1b of Pipe-SGD."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch
from torch import nn

from gradwire.autotune import InitialPlan
from gradwire.autotune.settings import Auto, whole
from gradwire.costs import ExchangeCost
from gradwire.plan import PlanLike
from gradwire.sync.flat.backward import BackwardOverlap, backward
from gradwire.sync.flat.buckets import UsedParameters, UsedParametersAgreement
from gradwire.sync.flat.gradients import FlatGradients
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.method import Group, WorkerMethod
from gradwire.sync.trained import check_optimizer


class DSync(WorkerMethod):
    """Synchronous SGD: each step averages the gradient over all ranks, and applies the average.

    ``w[t] = w[t-1] - lr * mean(g[t])``, where ``g[t]`` was computed at ``w[t-1]``. A step takes
    ``l_up + l_comp + l_comm`` (Pipe-SGD, equation 2) with one bucket. If the plan's ``bucket_nbytes`` divides
    the gradient into several buckets, a communication thread exchanges finished buckets while backward
    computes the remaining buckets.

    Parameters
    ----------
    model
        A model with dense float32 parameters on one device. Any other model raises ``TensorError``.
    optimizer
        A ``torch.optim`` optimizer whose ``step`` needs no closure.
    plan
        An argument of ``Plan.of``. The plan's ``pipeline`` is ignored. By default, or with ``"auto"`` or an
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
        self._overlap = BackwardOverlap(self.sync, self._buckets)

    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        started = perf_counter()
        average = self._average if len(self._buckets.cut) == 1 else self._average_buckets
        loss, waits = average(compute_loss)
        self.trained.shield()
        self._optimizer.step()
        return waits.within(perf_counter() - started, loss=loss)

    def _average(self, compute_loss: Callable[[], torch.Tensor]) -> tuple[float, StepRecord]:
        loss, used = backward(compute_loss, self._gradients), UsedParameters(self._gradients)
        cost = self._buckets.run(self._gradients, UsedParametersAgreement(used))
        self._gradients.attach(used.absent)
        return loss, StepRecord.of_wait(cost.total_s, cost)

    def _average_buckets(self, compute_loss: Callable[[], torch.Tensor]) -> tuple[float, StepRecord]:
        self.exchange.transport.check()
        with self._overlap.guarded():
            loss = self._overlap.backward(compute_loss, self._gradients)
            works, used = self._overlap.start_rest()
            started = perf_counter()
            cost = sum((work.wait() for work in works), ExchangeCost())
            wait_s = perf_counter() - started
        self._gradients.attach(used.absent)
        return loss, StepRecord.of_wait(wait_s, cost)
