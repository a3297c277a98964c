"""Scripts whose gradients DDP leaves unaveraged without a word, and those that only look like them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch._dynamo import config

from situations.battery import ATTACHED, Job, Row, Table, check
from situations.doors import STEPS
from situations.models import INPUTS, OUTPUTS, batch, distance, loss_of, make_model, sgd

situation = Table()
pytestmark = pytest.mark.processes
CHANGED = "was added after DistributedDataParallel was created, so its gradient is not averaged"


@situation(doors=ATTACHED, refused={"attach": CHANGED})
def weights_are_loaded_by_assigning_them(job: Job) -> None:
    module = make_model()
    model = job.ddp(module)
    loss_of(model, 0).backward()
    module.load_state_dict(copy.deepcopy(module.state_dict()), assign=True)
    optimizer = sgd(module.parameters())
    for step in range(STEPS):
        loss_of(model, step).backward()
        optimizer.step()


@situation(doors=ATTACHED, refused={"attach": CHANGED})
def a_layer_is_exchanged(job: Job) -> None:
    module = make_model()
    model = job.ddp(module)
    module[4] = nn.Linear(9, OUTPUTS)
    for step in range(STEPS):
        loss_of(model, step).backward()


@situation(doors=ATTACHED, refused={"attach": "expected one backward pass after each forward pass"})
def two_backward_passes_of_one_forward(job: Job) -> None:
    model = job.ddp(make_model())
    for step in range(STEPS):
        loss = loss_of(model, step)
        loss.backward(retain_graph=True)
        loss.backward()


@situation(doors=ATTACHED, refused={"attach": "expected one backward pass after each forward pass"})
def two_forward_passes_and_a_backward_for_each(job: Job) -> None:
    model = job.ddp(make_model())
    for step in range(STEPS):
        losses = [loss_of(model, step), loss_of(model, step + 100)]
        for loss in losses:
            loss.backward()


@situation(doors=ATTACHED, refused={"attach": "call optimizer.step() after backward"})
def an_optimizer_steps_in_hooks(job: Job) -> None:
    module = make_model()
    model = job.ddp(module)
    for each in module.parameters():
        optimizer = sgd([each])

        def step(_: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        each.register_post_accumulate_grad_hook(step)
    for number in range(STEPS):
        loss_of(model, number).backward()


@situation(doors=("plain", "identity"), refused={"attach": "python_reducer"})
def the_reducer_is_in_python(job: Job) -> None:
    with patch.object(config, "optimize_ddp", "python_reducer"):
        job.ddp(make_model())


@situation(doors=ATTACHED)
def a_loss_is_dropped(job: Job) -> None:
    """A forward pass that no backward pass follows, then one of both."""
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        if step % 2:
            job.lost(loss_of(model, step + 100).detach())
        loss_of(model, step).backward()
        job.saw(model)
        optimizer.step()


@situation(doors=ATTACHED)
def hooks_look_at_gradients(job: Job) -> None:
    module = make_model()
    seen: list[float] = []
    for each in module.parameters():
        each.register_post_accumulate_grad_hook(lambda each: seen.append(float(each.abs().sum())))
    job.train(module, loss_of)
    job.lost(sum(seen) / len(seen) if job.door.error is None else 0.0)


@situation(doors=ATTACHED)
def a_backward_pass_for_each_part(job: Job) -> None:
    """Two heads without a common layer, a loss and a backward pass for each."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(7)
            self.first, self.second = nn.Linear(INPUTS, OUTPUTS), nn.Linear(INPUTS, OUTPUTS)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.first(x), self.second(x)

    model = job.ddp(Heads())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for out in model(batch(step)):
            distance(out, step).backward()
        job.saw(model)
        optimizer.step()


@pytest.mark.parametrize("row", situation.rows, ids=str)
def test_every_front_door(row: Row, run_processes: Callable[..., list[Any]]) -> None:
    check(row, run_processes)
