"""Several forward or backward passes for one update, and gradients that the script changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from situations.battery import ATTACHED, Job, Row, Table, check
from situations.doors import STEPS
from situations.models import batch, distance, loss_of, make_model, sgd

situation = Table()
pytestmark = pytest.mark.processes


@situation()
def one_pass_a_step(job: Job) -> None:
    job.train(make_model(), loss_of)


def accumulates(job: Job, quiet: bool, **options: Any) -> None:
    model = job.ddp(make_model(), **options)
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(3):
            with model.no_sync() if quiet and part < 2 else nullcontext():
                loss_of(model, 3 * step + part).backward()
        job.saw(model)
        optimizer.step()


@situation(doors=ATTACHED)
def accumulates_under_no_sync(job: Job) -> None:
    accumulates(job, quiet=True)


@situation(doors=ATTACHED)
def accumulates_under_no_sync_in_views(job: Job) -> None:
    accumulates(job, quiet=True, gradient_as_bucket_view=True)


@situation(doors=ATTACHED, rounds=3)
def accumulates_without_no_sync(job: Job) -> None:
    accumulates(job, quiet=False)


@situation(doors=ATTACHED, rounds=3)
def accumulates_without_no_sync_in_views(job: Job) -> None:
    accumulates(job, quiet=False, gradient_as_bucket_view=True)


@situation(doors=ATTACHED)
def a_last_part_without_no_sync_ends_an_epoch(job: Job) -> None:
    """An epoch whose last group of batches is shorter leaves gradients that no rank has averaged."""
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        with model.no_sync() if step % 3 != 2 else nullcontext():
            loss_of(model, step).backward()
        if step % 3 == 2:
            job.saw(model)
            optimizer.step()
            optimizer.zero_grad()
    loss_of(model, STEPS).backward()
    job.saw(model)
    optimizer.step()


@situation()
def accumulates_in_one_loss(job: Job) -> None:
    job.train(make_model(), lambda model, step: loss_of(model, step) + loss_of(model, step + 100))


@situation()
def two_forward_passes_and_one_backward(job: Job) -> None:
    def loss(model: nn.Module, step: int) -> torch.Tensor:
        return distance(model(batch(step)) + model(batch(step + 100)), step)

    job.train(make_model(), loss)


@situation(doors=ATTACHED)
def two_forward_passes_and_two_backward(job: Job) -> None:
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            first = loss_of(model, step)
            first.backward()
        loss_of(model, step + 100).backward()
        job.saw(model)
        optimizer.step()


@situation(doors=ATTACHED)
def gradients_set_to_zero_in_place(job: Job) -> None:
    model = job.ddp(make_model(), gradient_as_bucket_view=True)
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        loss_of(model, step).backward()
        job.saw(model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)


@situation(doors=ATTACHED)
def gradients_cleared_by_the_model(job: Job) -> None:
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        model.zero_grad(set_to_none=step % 2 == 0)
        loss_of(model, step).backward()
        job.saw(model)
        optimizer.step()


@situation(doors=ATTACHED)
def clips_the_averaged_gradient(job: Job) -> None:
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        job.lost(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        job.saw(model)
        optimizer.step()


@situation(doors=ATTACHED)
def scales_gradients_by_a_noise_scale(job: Job) -> None:
    """Hooks of the user on parameters change a gradient before it is averaged."""
    module = make_model()
    for each in module.parameters():
        each.register_hook(lambda grad: 0.5 * grad)
    model = job.ddp(module)
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        job.saw(model)
        optimizer.step()


@situation()
def hooks_of_the_user_change_own_gradients(job: Job) -> None:
    module = make_model()
    for each in module.parameters():
        each.register_hook(lambda grad: 0.5 * grad)
    job.train(module, loss_of)


@situation(doors=ATTACHED)
def a_loss_of_nan_on_all_ranks_is_skipped(job: Job) -> None:
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step) * (torch.nan if step == 3 else 1.0)
        if loss.isfinite():
            loss.backward()
            job.saw(model)
            optimizer.step()


@situation(doors=ATTACHED)
def a_gradient_of_nan_is_skipped_by_all(job: Job) -> None:
    """One rank's gradient is NaN, so that the average is on every rank, and all skip the update."""
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        (loss_of(model, step) * (torch.nan if step == 3 and job.rank == 1 else 1.0)).backward()
        if all(bool(each.grad.isfinite().all()) for each in model.parameters() if each.grad is not None):
            job.saw(model)
            optimizer.step()
        else:
            job.lost(step)


@pytest.mark.parametrize("row", situation.rows, ids=str)
def test_every_front_door(row: Row, run_processes: Callable[..., list[Any]]) -> None:
    check(row, run_processes)
