"""The method that a plan asks for."""

from __future__ import annotations

import torch
from torch import nn

from gradwire.exchange import Exchange
from gradwire.training.ledger.ledger import Ledger
from gradwire.training.methods.d_sync import DSync
from gradwire.training.methods.method import WorkerMethod
from gradwire.training.pipe.correction import CORRECTIONS
from gradwire.training.pipe.pipe_sgd import PipeSGD


def make_method(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    exchange: Exchange,
    warmup_steps: int = 0,
    ledger: Ledger | None = None,
    correction: str = CORRECTIONS[0],
    strict: bool = False,
) -> WorkerMethod:
    """Return ``DSync`` where the exchange's plan has the pipeline 1, else ``PipeSGD`` with its pipeline.

    Parameters
    ----------
    model
        Dense float32 parameters on the CPU. Raises ``TensorError`` otherwise.
    optimizer
        Any ``torch.optim`` optimizer whose ``step`` needs no closure.
    exchange
        Its plan chooses everything.
    warmup_steps
        See ``PipeSGD``; ``DSync`` needs none. Raises ``SpecError`` for a negative number.
    ledger
        Counts bytes and seconds by bucket and step, if there is one.
    correction
        See ``PipeSGD``; ``DSync`` has nothing to correct.
    strict
        See both.
    """
    pipeline = exchange.plan.pipeline
    if pipeline == 1 and warmup_steps >= 0:
        return DSync(model, optimizer, exchange, ledger, strict)
    return PipeSGD(
        model,
        optimizer,
        exchange,
        pipeline,
        warmup_steps,
        ledger=ledger,
        correction=correction,
        strict=strict,
    )
