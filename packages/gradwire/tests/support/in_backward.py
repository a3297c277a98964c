"""Models of ranks that are threads, their losses, and calls in the middle of backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def batch(step: int, rank: int) -> torch.Tensor:
    """Return the batch of one rank in one step, of 6 rows of 5 values."""
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(100 * step + rank))


def mean_square(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    """Return the loss of the rank's batch."""
    return model(batch(step, rank)).square().mean()  # type: ignore[no-any-return]


def copies_of(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a function that copies one model, because the ranks are threads with one generator."""
    torch.manual_seed(1)
    prototype = make()
    return lambda: copy.deepcopy(prototype)


def weights(model: nn.Module) -> torch.Tensor:
    """Return a copy of all parameters as one vector."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def met_by(x: torch.Tensor, call: Callable[[], object]) -> torch.Tensor:
    """Return a copy of ``x`` whose backward first calls a function."""
    met: Any = _Meet.apply(x, call)  # type: ignore[no-untyped-call]
    return met  # type: ignore[no-any-return]


class _Meet(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, call: Callable[[], object]) -> torch.Tensor:
        ctx.call = call
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.call()
        return grad, None
