"""What every training method of a worker has in common: begin equal, step, drain, close."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from types import TracebackType
from typing import Self

import torch
from torch import nn

from gradwire.errors import ExchangeError, SpecError, TensorError, shown
from gradwire.exchange import Exchange
from gradwire.training.gradients.flat import FlatGradients
from gradwire.training.ledger.ledger import Ledger
from gradwire.training.ledger.method_meter import MethodMeter
from gradwire.training.ledger.step_record import StepRecord
from gradwire.training.methods.trained import Trained, check_exchange, check_extras
from gradwire.training.methods.welcome import welcome
from gradwire.training.replicas.broadcast import begin_equal


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

    A parameter that is unfrozen, or that model and optimizer got since, takes part from the next step on,
    with rank 0's weights; all ranks do so before the same step. One that is frozen, or that backward reaches
    on no rank, has ``.grad`` None in the update, as in plain torch.
    """

    def __init__(
        self,
        model: nn.Module,
        exchange: Exchange,
        ledger: Ledger | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        strict: bool = False,
    ) -> None:
        check_exchange(exchange, type(self).__name__)
        check_extras(type(self).__name__, ledger, strict)
        self.trained = Trained(model, optimizer, type(self).__name__)
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
        SpecError, TensorError
            For what is no function, for one that returns no loss, and for an optimizer that has got
            parameters which are not the model's. Nothing has been sent.
        ExchangeError
            A peer is gone, too slow or sent something invalid; the message names rank, peer and step.
        LossyError
            Where the method is strict, on all ranks after the same step.
        """
        self.check_open()
        if not callable(compute_loss):
            raise SpecError(
                f"step calls a function that computes the loss, but got {shown(compute_loss)}; write "
                "step(lambda: loss_of(model(x), y)), which leaves forward and backward to it"
            )
        start = StepRecord() if self._synchronised else self.synchronise()
        start += self._grow()
        record = self._step(compute_loss)
        self.steps_done += 1
        self.meter.end_step()
        return start + record

    def synchronise(self) -> StepRecord:
        """Adopt rank 0's weights and buffers, exactly; all ranks call it together.

        Raises ``TensorError`` or ``ExchangeError``.
        """
        self.check_open()
        drained = self.drain()
        started = perf_counter()
        accounting = begin_equal(self.model, self.exchange, self.ledger)
        self._synchronised = True
        return drained + StepRecord.of_wait(accounting.total_s, accounting).within(
            perf_counter() - started, steps=0
        )

    def drain(self) -> StepRecord:
        """Apply all outstanding gradients, oldest first; return what that cost. Here none is outstanding."""
        return StepRecord()

    def check_open(self) -> None:
        """Raise ``ExchangeError`` if ``close`` was called."""
        if self.closed:
            raise ExchangeError(
                f"rank {self.exchange.link.rank}: this {type(self).__name__} is closed; make a new one"
            )

    def close(self) -> None:
        """Give up what the method holds; may be called twice. No step is possible after it."""
        self.closed = True

    def abort(self) -> None:
        """Close after a failure: drop what has not been sent, then ``close``."""
        self.close()

    def _grow(self) -> StepRecord:
        """Let parameters that ask for a gradient since the last step take part; return what that cost."""
        if not self.trained.grown():
            return StepRecord()
        drained = self._before_growing()
        started = perf_counter()
        accounting = welcome(self.trained, self.exchange, self.ledger)
        self.meter.follow(self.trained.parameters)
        self._lay_out()
        return drained + StepRecord.of_wait(accounting.total_s, accounting).within(
            perf_counter() - started, steps=0
        )

    def _before_growing(self) -> StepRecord:
        """Finish what is laid out as the parameters were; return what that cost."""
        return self.drain()

    @abstractmethod
    def _lay_out(self) -> None:
        """Make what is laid out as ``trained.parameters``, anew where there is some; nothing is under way."""

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
            if not self.closed:  # it may have been on purpose, with gradients still on their way
                self.drain()
        finally:
            self.close()


def backward(compute_loss: Callable[[], torch.Tensor], gradients: FlatGradients) -> float:
    """Fill ``gradients`` with those of one batch and return its loss. Raises ``TensorError``."""
    gradients.zero()
    loss = checked_loss(compute_loss())
    run_backward(loss)
    gradients.collect()
    return float(loss.detach())


def run_backward(loss: torch.Tensor) -> None:
    """Run the backward pass. Raises ``TensorError`` where ``compute_loss`` has done it already."""
    try:
        torch.autograd.backward(loss)
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise TensorError(
            "step runs the backward pass of the loss that compute_loss returns, but that was run before: "
            "leave backward to step, and compute the loss anew in each"
        ) from error


def checked_loss(loss: object) -> torch.Tensor:
    """Return what ``compute_loss`` has returned. Raises ``TensorError`` unless backward can begin there."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else shown(loss)
        raise TensorError(
            f"compute_loss must return the loss, a tensor of one value, but returned {found}; write "
            "step(lambda: loss_of(model(x), y)), without backward"
        )
    if loss.is_complex():
        raise TensorError(
            f"compute_loss must return a real loss, but returned {loss.dtype}; take .real or .abs()"
        )
    if not loss.requires_grad:
        raise TensorError(
            "compute_loss must return a loss that depends on a trainable parameter, but this one has no "
            "graph; leave .detach(), .item() and no_grad out of it, and check that requires_grad is on "
            "somewhere"
        )
    return loss
