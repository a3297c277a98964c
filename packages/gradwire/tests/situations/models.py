"""A small model, its batches and its loss: what most situations train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

INPUTS, OUTPUTS = 6, 3


def make_model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(INPUTS, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, OUTPUTS))


def batch(step: int, count: int = 4) -> torch.Tensor:
    """Return this rank's inputs of a step."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(count, INPUTS, generator=generator)


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    return distance(model(batch(step)), step)


def loss_at(step: int) -> Callable[[nn.Module], torch.Tensor]:
    """Return what computes the loss of a step."""
    return partial(loss_of, step=step)


def distance(out: torch.Tensor, step: int) -> torch.Tensor:
    """Return the mean squared distance from what is to be learnt from a step's batch."""
    wanted = batch(step)[:, :OUTPUTS].sin()
    loss: torch.Tensor = (out.float() - wanted).square().mean()
    return loss


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.5)
