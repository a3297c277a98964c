"""Buffers: running statistics, masks, and who copies them to whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.parallel import DistributedDataParallel

from situations.battery import ATTACHED, Job, Row, Table, check
from situations.doors import STEPS
from situations.models import INPUTS, OUTPUTS, batch, distance, loss_at, loss_of, make_model, sgd

situation = Table()
pytestmark = pytest.mark.processes


def normalised() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(INPUTS, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, OUTPUTS))


@situation(later=100)
def running_statistics(job: Job) -> None:
    job.train(normalised(), loss_of)


@situation(later=100)
def running_statistics_of_each_rank(job: Job) -> None:
    job.train(normalised(), loss_of, broadcast_buffers=False)


@situation(later=100)
def statistics_that_are_evaluated_between_steps(job: Job) -> None:
    module = normalised()
    trainer = job.trainer(module, sgd(module.parameters()))
    for step in range(STEPS):
        trainer.step(loss_at(step))
        if step == 4:
            trainer.drain()
            module.eval()
            with torch.no_grad():
                job.lost(loss_of(module, 77))
            module.train()
    trainer.drain()


@situation(later=100)
def statistics_that_are_frozen(job: Job) -> None:
    module = normalised()
    module[1].eval()
    job.train(module, loss_of)


class Synchronised(nn.Module):
    """SyncBatchNorm in a few lines: the script's own collectives run within forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.zeros(9))
        self.scale = nn.Parameter(torch.ones(9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = all_reduce(x.mean(0)) / torch.distributed.get_world_size()
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * mean.detach()
        return (x - mean) * self.scale


@situation(later=100)
def statistics_over_all_ranks(job: Job) -> None:
    torch.manual_seed(7)
    job.train(nn.Sequential(nn.Linear(INPUTS, 9), Synchronised(), nn.Tanh(), nn.Linear(9, OUTPUTS)), loss_of)


@situation()
def a_counter_and_a_mask(job: Job) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = make_model()
            self.calls = nn.Buffer(torch.zeros((), dtype=torch.int64))
            self.mask = nn.Buffer(torch.arange(OUTPUTS) != 1, persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return self.body(x) * self.mask

    job.train(Counts(), loss_of)


@situation(doors=ATTACHED)
def a_buffer_that_ddp_ignores(job: Job) -> None:
    module = normalised()
    module.register_buffer("own", torch.full((2,), float(job.rank)))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["own"])
    job.train(module, loss_of)


@situation()
def a_buffer_is_replaced_by_the_forward_pass(job: Job) -> None:
    class Momentum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = make_model()
            self.mean = nn.Buffer(torch.zeros(OUTPUTS))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.body(x)
            self.mean = self.mean * 0.5 + out.detach().mean(0) * 0.5
            return out - self.mean

    job.train(Momentum(), loss_of)


@situation()
def weights_that_the_forward_pass_draws(job: Job) -> None:
    """Dropout: plain and attached training draw the same numbers, since each begins with one seed."""
    torch.manual_seed(7)
    module = nn.Sequential(nn.Linear(INPUTS, 9), nn.Dropout(0.3), nn.Linear(9, OUTPUTS))

    def loss(model: nn.Module, step: int) -> torch.Tensor:
        torch.manual_seed(step)
        return distance(model(batch(step)), step)

    job.train(module, loss)


@pytest.mark.parametrize("row", situation.rows, ids=str)
def test_every_front_door(row: Row, run_processes: Callable[..., list[Any]]) -> None:
    check(row, run_processes)
