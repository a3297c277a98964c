"""D-Sync: synchronous data-parallel SGD over an all-reduce, the baseline of Pipe-SGD (its figure 1b)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter

import torch
from torch import nn

from gradwire.exchange import Accounting, Exchange
from gradwire.training.communication.buckets import WHOLE, Buckets, average
from gradwire.training.gradients.buckets import cut
from gradwire.training.gradients.flat import FlatGradients
from gradwire.training.gradients.reached import Reach
from gradwire.training.gradients.residual import Residuals
from gradwire.training.ledger.ledger import Ledger, profiled
from gradwire.training.ledger.step_record import StepRecord
from gradwire.training.methods.method import WorkerMethod, backward
from gradwire.training.methods.overlap import Overlap
from gradwire.training.methods.trained import check_optimizer, relaid


class DSync(WorkerMethod):
    """Average every step's gradient over all ranks, then update with it.

    ``w[t] = w[t-1] - lr * mean(g[t])``, where ``g[t]`` was computed at ``w[t-1]``. A step takes
    ``l_up + l_comp + l_comm`` (Pipe-SGD, equation 2) with one bucket. Where the plan's ``bucket_nbytes`` cuts
    the gradient into several, a communication thread exchanges the buckets that backward has finished while
    it computes the others.

    Parameters
    ----------
    model
        Dense float32 parameters on the CPU. Raises ``TensorError`` otherwise.
    optimizer
        Any ``torch.optim`` optimizer whose ``step`` needs no closure.
    exchange
        Its plan chooses codec, algorithm and buckets. With several buckets it belongs to the communication
        thread within a step.
    ledger
        Counts bytes and seconds by bucket and step, if there is one.
    strict
        Whether a step raises ``LossyError`` on all ranks, instead of a warning on one, where encoding keeps
        taking most of a parameter's gradient away; the same on all ranks.

    Attributes
    ----------
    residuals
        What this rank's encodings lost, where the plan keeps it; its state belongs into a checkpoint.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        exchange: Exchange,
        ledger: Ledger | None = None,
        strict: bool = False,
    ) -> None:
        check_optimizer(optimizer, "DSync")
        super().__init__(model, exchange, ledger, optimizer, strict)
        self._optimizer = optimizer
        self.residuals = Residuals(exchange.plan, exchange.link.rank, exchange.link.world)
        self._gradients = FlatGradients(self.trained.parameters)
        self._residual = relaid(self.residuals, self._gradients)
        self._overlap = self._overlapping()

    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        started = perf_counter()
        if self._overlap is None:
            loss = backward(compute_loss, self._gradients)
            accounting = self._average()
            waits = StepRecord.of_wait(accounting.total_s, accounting)
        else:
            loss, waits = self._overlap.average(self.steps_done + 1, compute_loss)
        self.trained.shield()
        self._optimizer.step()
        return waits.within(perf_counter() - started, loss=loss)

    def _average(self) -> Accounting:
        """Exchange the whole gradient as one bucket."""
        buffer, step = self._gradients.buffer, self.steps_done + 1
        reach = Reach(self._gradients)
        measure = self.meter.measure(step, self.meter.all)
        with nullcontext() if self.ledger is None else profiled(f"exchange {WHOLE}"):
            waiting = reach.parts(self._residual)
            way = self.exchange, self.meter, step, buffer, measure
            accounting = average(*way, self._residual, waiting, reach)
        self._gradients.attach(reach.absent)
        self.meter.count(WHOLE, accounting, accounting.total_s, buffer.nbytes, measure)
        return accounting

    def _lay_out(self) -> None:
        if self._overlap is not None:
            self._overlap.close()
        before = self._gradients
        self._gradients = FlatGradients(self.trained.parameters, with_frozen=True)
        self._residual = relaid(self.residuals, self._gradients, before)
        self._overlap = self._overlapping()

    def _overlapping(self) -> Overlap | None:
        """Return what exchanges the buckets while backward computes, where there are several."""
        if len(cut(self._gradients.counts, self.exchange.plan.bucket_nbytes)) == 1:
            return None
        buckets = Buckets(self.exchange, self.meter, self._gradients, self._residual)
        return Overlap(self.exchange.link.rank, self._gradients, buckets)

    def close(self) -> None:
        """Join the thread, if there is one. Raises ``LinkTimeoutError`` if it does not end."""
        if not self.closed:
            super().close()
            if self._overlap is not None:
                self._overlap.close()

    def abort(self) -> None:
        """Close without sending what is still queued."""
        if self._overlap is not None:
            self._overlap.abort()
        self.close()
