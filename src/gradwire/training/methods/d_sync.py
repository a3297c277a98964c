"""D-Sync: synchronous data-parallel SGD over an all-reduce, the baseline of Pipe-SGD (its figure 1b)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter

import torch
from torch import nn

from gradwire.auto.settings import Auto
from gradwire.costs import ExchangeCost
from gradwire.plan import PlanLike
from gradwire.training.communication.buckets import WHOLE, Buckets, average
from gradwire.training.gradients.buckets import cut
from gradwire.training.gradients.flat import FlatGradients
from gradwire.training.gradients.reached import Reach
from gradwire.training.ledger.ledger import Ledger, profiled
from gradwire.training.ledger.step_record import StepRecord
from gradwire.training.methods.backward import backward
from gradwire.training.methods.method import Group
from gradwire.training.methods.overlap import Overlap
from gradwire.training.methods.trained import check_optimizer
from gradwire.training.methods.worker_method import WorkerMethod


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
        self._divided = self.meter.divided(self.exchange, self.meter.all)
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
            way = self.exchange, self._divided, self.meter, step, self._gradients.staged(), measure
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
