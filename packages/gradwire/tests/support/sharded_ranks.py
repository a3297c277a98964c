"""A small model and its batches, for ranks that are threads: what tests of sharded training share."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn


def seeded(*layers: Callable[[], nn.Module]) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(*[make() for make in layers])


SMALL = seeded(lambda: nn.Linear(6, 9), nn.Tanh, lambda: nn.Linear(9, 4))
LARGE = seeded(lambda: nn.Linear(200, 200), nn.Tanh, lambda: nn.Linear(200, 200))


def make_model() -> nn.Sequential:
    return copy.deepcopy(SMALL)  # ranks are threads, which share one generator


def loss_of(model: nn.Module, t: int, rank: int) -> Callable[[], torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * t + rank)
    x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 4, generator=generator)
    return lambda: nn.functional.mse_loss(model(x), y)


def bits(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)
