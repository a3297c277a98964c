"""D-Sync: synchronous data-parallel SGD over an all-reduce, the baseline of Pipe-SGD (its figure 1b)."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch import nn

from gradwire.exchange import Exchange
from gradwire.training.flat import FlatGradients
from gradwire.training.method import WorkerMethod, backward
from gradwire.training.record import StepRecord


class DSync(WorkerMethod):
    """Average every step's gradient over all ranks, then update with it.

    ``w[t] = w[t-1] - lr * mean(g[t])``, where ``g[t]`` was computed at ``w[t-1]``. A step takes
    ``l_up + l_comp + l_comm`` (Pipe-SGD, equation 2).

    Parameters
    ----------
    model
        Dense float32 parameters on the CPU. Raises ``TensorError`` otherwise.
    optimizer
        Any ``torch.optim`` optimizer whose ``step`` needs no closure.
    exchange
        Its plan chooses codec and algorithm.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, exchange: Exchange) -> None:
        super().__init__(model, exchange)
        self._optimizer = optimizer
        self._gradients = FlatGradients(model.parameters())

    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        started = perf_counter()
        loss = backward(compute_loss, self._gradients)
        accounting = self.exchange.all_reduce(self._gradients.buffer, average=True)
        self._optimizer.step()
        waits = StepRecord.of_wait(accounting.total_s, accounting)
        return waits.within(perf_counter() - started, loss=loss)
