"""The model that the matrix trains, and a way to make one of its gradients NaN."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn

WIDTHS = (96, 128, 128, 10)


class Spoilt(torch.autograd.Function):
    """Returns ``x``; its gradient is that of the result times ``factor``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad * ctx.factor, None


class Offset(nn.Module):
    """Adds a parameter whose gradient can be made NaN in one place, and none besides."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(WIDTHS[-1]))
        self.factor = torch.ones(WIDTHS[-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spoilt: Any = Spoilt.apply
        out: torch.Tensor = x + spoilt(self.offset, self.factor)
        return out


def make_model() -> nn.Sequential:
    torch.manual_seed(11)
    layers: list[nn.Module] = []
    for before, after in pairwise(WIDTHS):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers, Offset())


def poison(model: nn.Module) -> None:
    """Let one gradient of this rank be NaN from now on."""
    for module in model.modules():
        if isinstance(module, Offset):
            module.factor[0] = float("nan")


def loss_of(model: nn.Module, rank: int, batch: int) -> torch.Tensor:
    """Return the loss on this rank's batch."""
    x = torch.randn(8, WIDTHS[0], generator=torch.Generator().manual_seed(1000 * batch + rank))
    loss: torch.Tensor = (model(x) - x[:, : WIDTHS[-1]].sin()).square().mean()
    return loss
