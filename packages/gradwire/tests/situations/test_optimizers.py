"""Optimizers that compute several times a step, that scale losses, or whose weights somebody swaps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from situations.battery import ATTACHED, Job, Row, Table, check
from situations.doors import STEPS
from situations.models import batch, distance, loss_at, loss_of, make_model, sgd

situation = Table()
pytestmark = pytest.mark.processes


@situation(later=100)
def adam(job: Job) -> None:
    module = make_model()
    job.train(module, loss_of, torch.optim.Adam(module.parameters(), lr=1e-3))


@situation(later=100)
def adamw_fused_by_foreach(job: Job) -> None:
    module = make_model()
    job.train(module, loss_of, torch.optim.AdamW(module.parameters(), lr=1e-3, amsgrad=True, foreach=True))


@situation(doors=ATTACHED, later=1000)
def lbfgs(job: Job) -> None:
    """A closure computes several times a step; all ranks do so as often, since they see the same losses."""
    module = make_model()
    model = job.ddp(module)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=3)
    for step in range(3):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            job.saw(module)
            averaged = loss.detach().clone()
            torch.distributed.all_reduce(averaged)
            return averaged / 2

        job.lost(optimizer.step(closure))


@situation(doors=ATTACHED, later=100)
def sharpness_aware(job: Job) -> None:
    """SAM: a second backward pass at weights that the first one's gradient has moved."""
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        job.saw(model)
        with torch.no_grad():
            moves = [0.05 * each.grad for each in model.parameters() if each.grad is not None]
            torch._foreach_add_([*model.parameters()], moves)
        optimizer.zero_grad()
        loss_of(model, step).backward()
        with torch.no_grad():
            torch._foreach_sub_([*model.parameters()], moves)
        job.saw(model)
        optimizer.step()


@situation(doors=ATTACHED, later=100)
def sharpness_aware_with_the_first_pass_alone(job: Job) -> None:
    """m-sharpness: every rank moves its weights by its own gradient, under ``no_sync``."""
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            loss_of(model, step).backward()
        before = [each.detach().clone() for each in model.parameters()]
        with torch.no_grad():
            for each in model.parameters():
                each.add_(torch.zeros(()) if each.grad is None else 0.05 * each.grad)
        optimizer.zero_grad()
        loss_of(model, step).backward()
        with torch.no_grad():
            torch._foreach_copy_([*model.parameters()], before)
        job.saw(model)
        optimizer.step()


@situation()
def an_average_is_swapped_in_between_steps(job: Job) -> None:
    """EMA: its weights are evaluated in the model's place, and the trained ones come back."""
    module = make_model()
    average = [each.detach().clone() for each in module.parameters()]
    trainer = job.trainer(module, sgd(module.parameters()))
    for step in range(STEPS):
        trainer.step(loss_at(step))
        with torch.no_grad():
            torch._foreach_lerp_(average, [*module.parameters()], 0.1)
            trained = [each.detach().clone() for each in module.parameters()]
            torch._foreach_copy_([*module.parameters()], average)
            job.lost(loss_of(module, 77))
            torch._foreach_copy_([*module.parameters()], trained)
    trainer.drain()


@situation()
def an_average_is_swapped_in_by_data(job: Job) -> None:
    module = make_model()
    average = [each.detach().clone() for each in module.parameters()]
    trainer = job.trainer(module, sgd(module.parameters()))
    for step in range(STEPS):
        trainer.step(loss_at(step))
        torch._foreach_lerp_(average, [each.data for each in module.parameters()], 0.1)
        for number, each in enumerate(module.parameters()):
            each.data, average[number] = average[number], each.data
        job.lost(loss_of(module, 77).detach())
        for number, each in enumerate(module.parameters()):
            each.data, average[number] = average[number], each.data
    trainer.drain()


@situation()
def an_averaged_model(job: Job) -> None:
    module = make_model()
    average: Any = AveragedModel(module)
    trainer = job.trainer(module, sgd(module.parameters()))
    for step in range(STEPS):
        trainer.step(loss_at(step))
        average.update_parameters(module)
        with torch.no_grad():
            job.lost(loss_of(average, 77))
    trainer.drain()


@situation(doors=ATTACHED)
def an_averaged_model_of_ddp(job: Job) -> None:
    model = job.ddp(make_model())
    average: Any = AveragedModel(model)
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        job.saw(model)
        optimizer.step()
        average.update_parameters(model)
        with torch.no_grad():
            job.lost(loss_of(average, 77))


@situation()
def learning_rates_change(job: Job) -> None:
    module = make_model()
    optimizer = sgd(module.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=STEPS + 2)
    trainer = job.trainer(module, optimizer)
    for step in range(STEPS):
        trainer.step(loss_at(step))
        schedule.step()
    trainer.drain()


@situation()
def a_group_is_added_later(job: Job) -> None:
    module = make_model()
    optimizer = sgd(module[:2].parameters())
    trainer = job.trainer(module, optimizer)
    for step in range(STEPS):
        if step == 3:
            trainer.drain()
            optimizer.add_param_group({"params": [*module[2:].parameters()], "lr": 0.05})
        trainer.step(loss_at(step))
    trainer.drain()


@situation(doors=ATTACHED)
def two_optimizers_of_one_model(job: Job) -> None:
    module = make_model()
    model = job.ddp(module)
    optimizers = [sgd(module[:2].parameters()), torch.optim.Adagrad(module[2:].parameters(), lr=0.01)]
    for step in range(STEPS):
        model.zero_grad()
        loss_of(model, step).backward()
        job.saw(model)
        optimizers[step % 2].step()


@situation(doors=ATTACHED)
def autocast_with_a_scaler(job: Job) -> None:
    """The third step overflows on one rank; all of them skip it, and halve the scale."""
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = distance(model(batch(step)), step)
        scaled = scaler.scale(loss * (torch.inf if step == 2 and job.rank else 1.0))
        scaled.backward()
        scaler.unscale_(optimizer)
        if step != 2:
            job.saw(model)
        scaler.step(optimizer)
        scaler.update()
        job.lost(scaler.get_scale())


@situation(later=200)
def autocast_in_bfloat16(job: Job) -> None:
    def loss(model: nn.Module, step: int) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return distance(model(batch(step)), step)

    job.train(make_model(), loss)


@situation(doors=ATTACHED)
def masters_in_float32_of_a_model_in_bfloat16(job: Job) -> None:
    module = make_model().bfloat16()
    model = job.ddp(module)
    masters = [nn.Parameter(each.detach().float()) for each in module.parameters()]
    optimizer = sgd(masters)
    for step in range(STEPS):
        model.zero_grad()
        distance(model(batch(step).bfloat16()), step).backward()
        job.saw(module)
        for master, each in zip(masters, module.parameters(), strict=True):
            master.grad = None if each.grad is None else each.grad.float()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_([*module.parameters()], [*masters])


@situation(doors=ATTACHED)
def an_optimizer_s_state_is_loaded_between_steps(job: Job) -> None:
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        job.saw(model)
        optimizer.step()
        if step == 2:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        if step == 5:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])


@situation(doors=ATTACHED)
def weights_are_clamped_between_steps(job: Job) -> None:
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        job.saw(model)
        optimizer.step()
        for each in model.parameters():
            each.data.clamp_(-0.2, 0.2)


@situation()
def hooks_of_the_optimizer(job: Job) -> None:
    """They see the averaged gradients and may change them."""
    module = make_model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def halve(stepped: torch.optim.Optimizer, _args: object, _options: object) -> None:
        for group in stepped.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    each.grad.mul_(0.5)

    optimizer.register_step_pre_hook(halve)
    job.train(module, loss_of, optimizer)


@pytest.mark.parametrize("row", situation.rows, ids=str)
def test_every_front_door(row: Row, run_processes: Callable[..., list[Any]]) -> None:
    check(row, run_processes)
