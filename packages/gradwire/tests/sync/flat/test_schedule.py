"""Gradients keep the learning rate of their step, under every scheduler of torch.optim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, StepLR

from gradwire import DSync
from gradwire.exchange import Exchange
from gradwire.sync.flat.update import in_force, scheduled
from gradwire.sync.method import WorkerMethod
from support.pipes import pipe_sgd

Optimizer = torch.optim.Optimizer
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "tensor lr": lambda parameters: torch.optim.SGD(parameters, lr=torch.tensor(0.05)),
}
SCHEDULERS: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "step": lambda optimizer: StepLR(optimizer, 1, gamma=0.5),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=20),  # momentum or betas, too
}


@pytest.mark.filterwarnings(
    "ignore:Detected call of `lr_scheduler.step"
)  # a pipeline's first step has no update
@pytest.mark.parametrize(
    ("optimizer", "scheduler"),
    [("sgd", "step"), ("sgd", "one cycle"), ("adam", "one cycle"), ("tensor lr", "step")],
)
def test_pipeline_1_is_d_sync_under_every_schedule(
    optimizer: str,
    scheduler: str,
    run_exchanges: Callable[..., list[Any]],
    make_model: Callable[[], nn.Module],
    batch_loss: Callable[..., Callable[[], torch.Tensor]],
) -> None:
    def train(exchange: Exchange, pipeline: int | None) -> torch.Tensor:
        model, rank = make_model(), exchange.link.rank
        chosen = OPTIMIZERS[optimizer](model.parameters())
        schedule = SCHEDULERS[scheduler](chosen)
        method: WorkerMethod = DSync(model, chosen, exchange.plan, group=exchange.link)
        if pipeline is not None:
            method = pipe_sgd(model, chosen, exchange, pipeline)
        with method:
            for t in range(8):
                method.step(batch_loss(model, t, slice(rank, rank + 1)))
                schedule.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    plain, piped, stale = (run_exchanges(2, lambda exchange, k=k: train(exchange, k)) for k in (None, 1, 2))
    assert torch.equal(piped[0], plain[0])
    assert torch.equal(piped[1], plain[0])
    assert not torch.equal(stale[0], plain[0])


def test_what_is_in_force_ends_with_the_block() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.5)
    kept = scheduled(optimizer)
    optimizer.param_groups[0].update(lr=0.25, momentum=0.0)
    seen = []

    def fail() -> None:
        with in_force(kept, optimizer):
            seen.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen == [(1.0, 0.5)]
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]) == (0.25, 0.0)


def test_a_group_that_came_later_keeps_its_own() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    kept = scheduled(optimizer)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 3.0})
    with in_force(kept, optimizer):
        assert [group["lr"] for group in optimizer.param_groups] == [1.0, 3.0]
