"""What happens between two steps, or keeps one from ending."""

from __future__ import annotations

import copy
import gc
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from situations.battery import ATTACHED, PIPES, Job, Row, Table, check
from situations.doors import STEPS
from situations.models import INPUTS, batch, loss_at, loss_of, make_model, sgd

situation = Table()
pytestmark = pytest.mark.processes


AUTO_DECIDES = 5


class OutOfMemoryError(RuntimeError):
    """What a forward pass raises whose batch is too large."""


@situation(doors=ATTACHED, whole=True)
def a_forward_pass_fails_and_its_step_is_tried_again(job: Job) -> None:
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())

    def fail(_module: nn.Module, _inputs: object) -> None:
        raise OutOfMemoryError

    for step in range(STEPS):
        optimizer.zero_grad()
        handle = model.module[2].register_forward_pre_hook(fail)
        with pytest.raises(OutOfMemoryError):
            loss_of(model, step)
        handle.remove()
        loss_of(model, step).backward()
        job.saw(model)
        optimizer.step()


@situation(whole=True)
def a_loss_fails_and_its_step_is_tried_again(job: Job) -> None:
    module = make_model()
    trainer = job.trainer(module, sgd(module.parameters()))
    for step in range(STEPS):

        def loss(model: nn.Module, step: int = step, fails: bool = False) -> torch.Tensor:
            found = loss_of(model, step)
            if fails:
                raise OutOfMemoryError
            return found

        if step % 3 == job.rank or step == AUTO_DECIDES:  # on one rank alone, and on both
            with pytest.raises(OutOfMemoryError):
                trainer.step(lambda model: loss(model, fails=True))
        trainer.step(loss)
    trainer.drain()


def evaluates(job: Job, how: Callable[[], Any]) -> None:
    module = make_model()
    trainer = job.trainer(module, sgd(module.parameters()))
    for step in range(STEPS):
        trainer.step(loss_at(step))
        if step % 2:
            trainer.drain()
            with how():
                job.lost(loss_of(trainer.model.eval(), 77).detach())
            trainer.model.train()
    trainer.drain()


@situation()
def evaluation_without_gradients(job: Job) -> None:
    evaluates(job, torch.no_grad)


@situation()
def evaluation_in_inference_mode(job: Job) -> None:
    evaluates(job, torch.inference_mode)


@situation(doors=PIPES)
def draining_in_inference_mode(job: Job) -> None:
    module = make_model()
    trainer = job.trainer(module, torch.optim.Adam(module.parameters(), lr=1e-3))
    for step in range(STEPS):
        trainer.step(loss_at(step))
        if step % 3 == 0:
            with torch.inference_mode():
                trainer.drain()
                job.lost(loss_of(module, 77))
    trainer.drain()


@situation(doors=ATTACHED)
def evaluation_with_gradients(job: Job) -> None:
    """A forward pass that no backward pass follows; DDP looks for unused parameters meanwhile."""
    model = job.ddp(make_model(), find_unused_parameters=True)
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        job.saw(model)
        optimizer.step()
        job.lost(loss_of(model, 77).detach())


@situation(doors=ATTACHED)
def evaluation_of_the_module_with_gradients(job: Job) -> None:
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        job.saw(model)
        optimizer.step()
        job.lost(loss_of(model.module, 77).detach())


@situation(doors=ATTACHED)
def evaluation_on_rank_0_alone(job: Job) -> None:
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        job.saw(model)
        optimizer.step()
        if job.rank == 0:
            with torch.no_grad():
                job.lost(loss_of(model.module, 77))


@situation()
def collectives_of_the_script_between_steps(job: Job) -> None:
    module = make_model()
    trainer = job.trainer(module, sgd(module.parameters()))
    for step in range(STEPS):
        trainer.step(loss_at(step))
        seen = torch.tensor([float(job.rank + step)])
        dist.all_reduce(seen)
        everyone: list[Any] = [None, None]
        dist.all_gather_object(everyone, (job.rank, step))
        dist.broadcast(seen, src=step % 2)
        job.lost(seen + everyone[1][0])
        dist.barrier()
    trainer.drain()


@situation(doors=ATTACHED)
def collectives_of_the_script_within_backward(job: Job) -> None:
    """A hook of the script's averages a norm while buckets are under way."""
    module = make_model()
    norms = torch.zeros(1)

    def look(grad: torch.Tensor) -> None:
        norms.copy_(grad.norm())
        dist.all_reduce(norms)

    weight: Any = module[2].weight
    weight.register_hook(look)
    model = job.ddp(module)
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        job.saw(model)
        job.lost(norms)
        optimizer.step()


@situation()
def several_models(job: Job) -> None:
    """A generator and a critic, in turn; the generator's loss goes through the critic."""
    torch.manual_seed(7)
    makes = nn.Sequential(nn.Linear(INPUTS, 5), nn.Tanh(), nn.Linear(5, INPUTS))
    judges = make_model()
    maker, judge = (
        job.trainer(module, torch.optim.SGD(module.parameters(), lr=0.05)) for module in (makes, judges)
    )

    def judged(model: nn.Module, step: int) -> torch.Tensor:
        with torch.no_grad():
            made = makes(batch(step))
        return model(made).square().mean() + loss_of(model, step)

    def fooled(model: nn.Module, step: int) -> torch.Tensor:
        return -judges(model(batch(step))).square().mean()

    for step in range(STEPS):
        judge.step(partial(judged, step=step))
        maker.step(partial(fooled, step=step))
    for each in (maker, judge):
        each.drain()


@situation()
def a_model_made_while_another_trains(job: Job) -> None:
    first = make_model()
    trainer = job.trainer(first, sgd(first.parameters()))
    for step in range(STEPS):
        trainer.step(loss_at(step))
        if step == 3:
            trainer.drain()
            second = copy.deepcopy(first)
            other = job.trainer(second, sgd(second.parameters()))
        if step > 3:
            other.step(loss_at(step + 50))
    for each in (trainer, other):
        each.drain()


@situation(doors=ATTACHED)
def ranks_with_uneven_batches(job: Job) -> None:
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    with model.join():
        for step in range(STEPS - 3 * job.rank):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()


@situation(doors=ATTACHED)
def ranks_with_uneven_batches_by_those_that_have_some(job: Job) -> None:
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    with model.join(divide_by_initial_world_size=False):
        for step in range(STEPS - 3 * job.rank):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()


@situation(doors=("plain", "backend", "codec", "by hand", "PipeSGD"))
def workers_are_forked_between_steps(job: Job) -> None:
    """As a loader does in every epoch: a child has gradwire's objects, and none of its threads."""
    gc.collect()  # a Gloo group that somebody has given up waits for its threads, which a child has not
    module = make_model()
    trainer = job.trainer(module, sgd(module.parameters()))
    for step in range(STEPS):
        trainer.step(loss_at(step))
        if step % 3 == 1:
            child = os.fork()
            if child == 0:
                gc.collect()
                os._exit(int(batch(step).isfinite().all()))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    trainer.drain()


@situation(doors=ATTACHED)
def a_copy_is_evaluated(job: Job) -> None:
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        job.saw(model)
        optimizer.step()
        if step % 3 == 0:
            with torch.no_grad():
                job.lost(loss_of(copy.deepcopy(model), 77))


@situation(doors=ATTACHED, refused={"attach": "got an unattached copy, whose gradients"})
def a_copy_is_trained(job: Job) -> None:
    model = job.ddp(make_model())
    loss_of(model, 0).backward()
    loss_of(copy.deepcopy(model), 1).backward()


@situation(doors=ATTACHED)
def the_process_group_is_made_anew(job: Job) -> None:
    """The model is wrapped again in a group of the same ranks, and training goes on."""
    module = make_model()
    optimizer = sgd(module.parameters())
    for period in range(2):
        group = dist.new_group([0, 1])
        model = job.ddp(module, process_group=group)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, STEPS * period + step).backward()
            job.saw(module)
            optimizer.step()
        job.close()
        del model
        dist.destroy_process_group(group)


@situation()
def the_default_group_is_made_anew(job: Job) -> None:
    """All is closed, destroyed, and begun again in the same processes."""
    module = make_model()
    for period in range(2):
        trainer = job.trainer(module, sgd(module.parameters()))
        for step in range(STEPS):
            trainer.step(loss_at(STEPS * period + step))
        trainer.drain()
        if period == 0:
            job.close()
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = [free.getsockname()[1]]
            dist.broadcast_object_list(port, src=0)
            dist.destroy_process_group()
            place = f"tcp://127.0.0.1:{port[0]}"
            dist.init_process_group("gloo", init_method=place, rank=job.rank, world_size=2)


@situation(doors=ATTACHED)
def a_model_is_loaded_in_place(job: Job) -> None:
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        job.saw(model)
        optimizer.step()
        if step == 2:
            saved = copy.deepcopy(model.module.state_dict())
        if step == 5:
            model.module.load_state_dict(saved)


@pytest.mark.parametrize("row", situation.rows, ids=str)
def test_every_front_door(row: Row, run_processes: Callable[..., list[Any]]) -> None:
    check(row, run_processes)
