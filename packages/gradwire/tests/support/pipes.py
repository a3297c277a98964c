"""Methods over the link, and with the plan, of an exchange that a test has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from gradwire import DSync, PipeSGD
from gradwire.exchange import Exchange
from gradwire.sync.method import Method

M = TypeVar("M", bound=Method)


def pipe_sgd(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    exchange: Exchange,
    pipeline: int = 2,
    warmup_steps: int = 0,
    **options: Any,
) -> PipeSGD:
    """Return a pipeline of this length, whatever the plan says of it."""
    plan = replace(exchange.plan, pipeline=pipeline)
    return PipeSGD(model, optimizer, plan, warmup_steps=warmup_steps, group=exchange.link, **options)


def made(model: nn.Module, optimizer: torch.optim.Optimizer, exchange: Exchange, **options: Any) -> Any:
    """Return the method that the exchange's plan asks for."""
    kind = DSync if exchange.plan.pipeline == 1 else PipeSGD
    return through(kind(model, optimizer, exchange.plan, group=exchange.link, **options), exchange)


def through(method: M, exchange: Exchange) -> M:
    """Let a method average through the exchange of a test, which sees or spoils what passes."""
    method.exchange.run = exchange.run  # type: ignore[method-assign]
    return method
