"""A model of which steps leave parts out, with optimizers whose state tells whether a part was stepped."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

STEPS = 12


class Branches(nn.Module):
    """A trunk and two branches, each of which a step may leave out or multiply by 0."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, left: float | None, right: float | None) -> torch.Tensor:
        hidden = self.trunk(x).tanh()
        parts = [(self.left, left), (self.right, right)]
        return torch.stack([factor * part(hidden) for part, factor in parts if factor is not None]).sum(0)


with torch.random.fork_rng(devices=[]):
    torch.manual_seed(7)
    _PROTOTYPE = Branches()


def new_branches() -> Branches:
    """Return a model with the first weights, always the same."""
    return copy.deepcopy(_PROTOTYPE)


def use(step: int, rank: int) -> tuple[float | None, float | None]:
    """Return the factors of the branches; None where this rank's step leaves one out."""
    if step in (2, 3):
        return 1.0, 1.0 if rank == 1 else None  # reached on one rank only
    if step in (4, 5):
        return 1.0, None  # on none
    if step == 6:
        return 1.0, 0.0  # on all, and its gradient is 0
    return 1.0, 1.0


def freeze(module: nn.Module, step: int) -> None:
    """Freeze a branch in step 8, and no more from step 10 on."""
    if step == 8:
        module.get_submodule("left").requires_grad_(False)
    if step == 10:
        module.get_submodule("left").requires_grad_(True)


def branch_loss(outer: nn.Module, inner: Branches, step: int, rank: int) -> torch.Tensor:
    """Return the loss of a rank's step; ``outer`` is ``inner`` or wraps it."""
    freeze(inner, step)
    x = batch(step, rank)
    found: torch.Tensor = (outer(x, *use(step, rank)) - x[:, :2]).square().mean()
    return found


def squares(model: Branches, x: torch.Tensor, right: float | None) -> torch.Tensor:
    """Return a loss that leaves no branch alone but the right one, where that is None."""
    found: torch.Tensor = (model(x, 1.0, right) - x[:, :2]).square().mean()
    return found


def batch(step: int, rank: int) -> torch.Tensor:
    """Return a rank's batch."""
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + rank))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1),
}


def everything(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return copies of the weights and of all that the optimizer keeps of each of them."""
    kept = [
        torch.as_tensor(value).clone()
        for each in module.parameters()
        for _, value in sorted(optimizer.state.get(each, {}).items())
        if value is not None
    ]
    return [*(each.detach().clone() for each in module.parameters()), *kept]


def assert_close(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    """Compare what ``everything`` returned."""
    assert len(found) == len(wanted)
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)


def frozen_model(rank: int = 0) -> Branches:
    """Return a model whose left branch alone is trained; each rank has weights of its own."""
    model = new_branches()
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.01 * rank)
    model.requires_grad_(False)
    model.left.requires_grad_(True)
    return model


def unfreeze(model: nn.Module, step: int) -> None:
    """Unfreeze the right branch in step 3, and the trunk in step 5."""
    if step == 3:
        model.get_submodule("right").requires_grad_(True)
    if step == 5:
        model.get_submodule("trunk").requires_grad_(True)


def gradually(step: int, rank: int, model: Branches) -> torch.Tensor:
    """Return the loss of a rank's step while parameters are unfrozen."""
    return squares(model, batch(step, rank), 1.0)


def unfrozen_by_hand(kind: str, workers: int) -> list[torch.Tensor]:
    """Train for 8 steps in one process, with all workers' batches."""
    model = frozen_model()
    optimizer = OPTIMIZERS[kind](model.parameters())
    for step in range(8):
        unfreeze(model, step)
        optimizer.zero_grad()
        losses = [gradually(step, rank, model) for rank in range(workers)]
        torch.autograd.backward(torch.stack(losses).mean())
        optimizer.step()
    return everything(model, optimizer)


def used_by_hand(kind: str, delay: int, workers: int) -> list[torch.Tensor]:
    """Train in one process: None for what no rank reaches, 0 from those who do not; a delay, then a drain."""
    model = new_branches()
    optimizer = OPTIMIZERS[kind](model.parameters())
    weights = list(model.parameters())
    means: list[list[torch.Tensor | None]] = []
    for step in range(STEPS + delay):
        if step >= delay:
            for weight, mean in zip(weights, means[step - delay], strict=True):
                weight.grad = mean
            optimizer.step()
        if step < STEPS:
            each = [_gradients(model, step, rank) for rank in range(workers)]
            means.append([_mean(found) for found in zip(*each, strict=True)])
    return everything(model, optimizer)


def _gradients(model: Branches, step: int, rank: int) -> list[torch.Tensor | None]:
    for each in model.parameters():
        each.grad = None
    torch.autograd.backward(branch_loss(model, model, step, rank))
    return [each.grad for each in model.parameters()]


def _mean(found: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    reached = [each for each in found if each is not None]
    return torch.stack(reached).sum(0) / len(found) if reached else None
