"""What every training method of a worker has in common: begin equal, step, drain, close."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from types import TracebackType
from typing import Self

import torch
from torch import nn

from gradwire.errors import ExchangeError
from gradwire.exchange import Exchange
from gradwire.training.broadcast import broadcast_weights, count_weights
from gradwire.training.flat import FlatGradients
from gradwire.training.ledger import Ledger
from gradwire.training.method_meter import MethodMeter
from gradwire.training.record import StepRecord


class WorkerMethod(ABC):
    """One rank's training loop body; all ranks make the same calls in the same order.

    ``step(compute_loss)`` trains on one batch. ``drain()`` applies what is still under way; call it before an
    evaluation, a checkpoint and the end. ``close()`` gives threads up; the link stays the caller's. As a
    context manager it drains and closes at the end of the block, and only closes when the block raised. A
    ``ledger`` counts every exchange by its bucket and gets the end of every step; it stays the caller's.

    ``meter`` measures what encoding loses of the gradients. At the end of a step it warns of parameters that
    keep losing most of theirs; with ``strict`` that step raises ``LossyError`` on all ranks instead, once its
    update is done, and the method can go on.

    The first step begins with ``synchronise()`` unless it was called before, so that replicas never begin
    different.
    """

    def __init__(
        self,
        model: nn.Module,
        exchange: Exchange,
        ledger: Ledger | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        strict: bool = False,
    ) -> None:
        self.model = model
        self.meter = MethodMeter(model, exchange, ledger, optimizer, strict)
        self.ledger = ledger
        self.exchange = exchange
        self.steps_done = 0
        self.closed = False
        self._synchronised = False

    def step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        """Train on one batch.

        Parameters
        ----------
        compute_loss
            Runs the forward pass and returns a scalar, the mean over this rank's batch. Its gradient is
            averaged over the workers, which is the gradient of the whole batch where all ranks have batches
            of equal size.

        Returns
        -------
        StepRecord
            Loss on this rank's batch, seconds and bytes.

        Raises
        ------
        ExchangeError
            A peer is gone, too slow or sent something invalid; the message names rank, peer and step.
        LossyError
            Where the method is strict, on all ranks after the same step.
        """
        if self.closed:
            raise ExchangeError(
                f"rank {self.exchange.link.rank}: this {type(self).__name__} is closed; make a new one"
            )
        start = StepRecord() if self._synchronised else self.synchronise()
        record = self._step(compute_loss)
        self.steps_done += 1
        self.meter.end_step()
        return start + record

    def synchronise(self) -> StepRecord:
        """Adopt rank 0's weights, exactly; all ranks call it together.

        Raises ``TensorError`` or ``ExchangeError``.
        """
        drained = self.drain()
        started = perf_counter()
        accounting = broadcast_weights(self.model, self.exchange)
        count_weights(self.ledger, accounting)
        self._synchronised = True
        return drained + StepRecord.of_wait(accounting.total_s, accounting).within(
            perf_counter() - started, steps=0
        )

    def drain(self) -> StepRecord:
        """Apply all outstanding gradients, oldest first; return what that cost. Here none is outstanding."""
        return StepRecord()

    def close(self) -> None:
        """Give up what the method holds; may be called twice. No step is possible after it."""
        self.closed = True

    def abort(self) -> None:
        """Close after a failure: drop what has not been sent, then ``close``."""
        self.close()

    @abstractmethod
    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        """Train on one batch; the replicas have begun equal."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort()
            return
        try:
            self.drain()
        finally:
            self.close()


def backward(compute_loss: Callable[[], torch.Tensor], gradients: FlatGradients) -> float:
    """Fill ``gradients`` with those of one batch and return its loss."""
    gradients.zero()
    loss = compute_loss()
    torch.autograd.backward(loss)
    gradients.collect()
    return float(loss.detach())
