"""Unusual forward and backward passes: unused parameters, checkpointing, double backward, compilers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from situations.battery import ATTACHED, Job, Row, Table, check
from situations.doors import STEPS
from situations.models import INPUTS, OUTPUTS, batch, distance, loss_of, make_model, sgd

situation = Table()
pytestmark = pytest.mark.processes


class Branches(nn.Module):
    """One branch is taken by rank 0, one by the others, one by nobody."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.body, self.rank = make_model(), rank
        self.first, self.others, self.never = (nn.Linear(OUTPUTS, OUTPUTS) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.others if self.rank else self.first)(self.body(x))


@situation()
def unused_parameters(job: Job) -> None:
    job.train(Branches(job.rank), loss_of, find_unused_parameters=True)


@situation()
def unused_parameters_in_views(job: Job) -> None:
    job.train(Branches(job.rank), loss_of, find_unused_parameters=True, gradient_as_bucket_view=True)


@situation(doors=ATTACHED, fails="Expected to have finished reduction in the prior iteration")
def unused_parameters_that_nobody_looks_for(job: Job) -> None:
    """DDP raises an error in the next forward pass, and so must every door."""
    job.train(Branches(job.rank), loss_of)


@situation()
def a_branch_that_changes_with_the_step(job: Job) -> None:
    module = Branches(job.rank)

    def loss(model: nn.Module, step: int) -> torch.Tensor:
        module.rank = (job.rank + step) % 2
        return loss_of(model, step)

    job.train(module, loss, find_unused_parameters=True)


@situation()
def layers_dropped_at_random(job: Job) -> None:
    """Stochastic depth: ranks draw different layers, and DDP looks for the unused ones."""

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.layers = (
                make_model(),
                nn.ModuleList(nn.Linear(OUTPUTS, OUTPUTS) for _ in range(4)),
            )
            self.step = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.body(x)
            for number, layer in enumerate(self.layers):
                if (self.step * 5 + job.rank * 3 + number) % 3:
                    x = x + layer(x)
            return x

    module = Dropped()

    def loss(model: nn.Module, step: int) -> torch.Tensor:
        module.step = step
        return loss_of(model, step)

    job.train(module, loss, find_unused_parameters=True)


@situation()
def a_static_graph(job: Job) -> None:
    job.train(make_model(), loss_of, static_graph=True)


@situation()
def a_static_graph_with_unused_parameters(job: Job) -> None:
    module = Branches(0)
    job.train(module, loss_of, static_graph=True)


class Checkpointed(nn.Module):
    """Computes its middle again in backward, ``times`` times over."""

    def __init__(self, reentrant: bool, times: int = 1) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.middle, self.last = (
            nn.Linear(INPUTS, INPUTS),
            nn.Linear(INPUTS, INPUTS),
            make_model(),
        )
        self.reentrant, self.times = reentrant, times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(self.times):
            x = checkpoint(self.middle, x, use_reentrant=self.reentrant)
        out: torch.Tensor = self.last(x)
        return out


@situation()
def checkpointing(job: Job) -> None:
    job.train(Checkpointed(reentrant=False), loss_of)


@situation()
def checkpointing_of_a_layer_twice(job: Job) -> None:
    job.train(Checkpointed(reentrant=False, times=2), loss_of)


@situation()
def reentrant_checkpointing(job: Job) -> None:
    job.train(Checkpointed(reentrant=True), loss_of)


@situation()
def reentrant_checkpointing_of_a_layer_twice(job: Job) -> None:
    job.train(Checkpointed(reentrant=True, times=2), loss_of, static_graph=True)


@situation(doors=ATTACHED, fails="Expected to mark a variable ready only once")
def reentrant_checkpointing_of_a_layer_twice_without_a_static_graph(job: Job) -> None:
    job.train(Checkpointed(reentrant=True, times=2), loss_of)


@situation()
def checkpointing_in_a_static_graph(job: Job) -> None:
    job.train(Checkpointed(reentrant=False), loss_of, static_graph=True)


@situation()
def a_gradient_penalty(job: Job) -> None:
    """A loss of the gradient at the inputs: backward runs twice through the graph (DDP: under no hook)."""

    def loss(model: nn.Module, step: int) -> torch.Tensor:
        x = batch(step).requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return distance(out, step) + 0.1 * (slope.norm(dim=1) - 1).square().mean()

    job.train(make_model(), loss)


@situation(doors=ATTACHED)
def backward_keeps_the_graph_and_is_not_repeated(job: Job) -> None:
    model = job.ddp(make_model())
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward(retain_graph=True)
        job.saw(model)
        optimizer.step()


@situation()
def gradients_of_inputs(job: Job) -> None:
    def loss(model: nn.Module, step: int) -> torch.Tensor:
        x = batch(step).requires_grad_()
        found = distance(model(x), step)
        slope = torch.autograd.grad(found, x, retain_graph=True)[0]
        job.lost(slope.sum())
        return found

    job.train(make_model(), loss)


@situation()
def stateless_calls(job: Job) -> None:
    """``functional_call`` with the module's own parameters, and with some that are computed."""
    module = make_model()

    def loss(model: nn.Module, step: int) -> torch.Tensor:
        inner = dict(module.named_parameters())
        doubled = {name: 2 * each if name.endswith("bias") else each for name, each in inner.items()}
        return loss_of(model, step) + 0.1 * distance(functional_call(module, doubled, (batch(step),)), step)

    job.train(module, loss)


@dataclass
class Answer:
    out: torch.Tensor
    extra: dict[str, Any]


class Answers(nn.Module):
    """Takes two inputs and a word, and returns what ``kind`` says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.kind = make_model(), kind

    def forward(self, x: torch.Tensor, shift: torch.Tensor, *, scale: float = 1.0) -> Any:
        out = self.body(x * scale + shift)
        if self.kind == "dict":
            return {"out": out, "parts": [(out.sum(), None)], "name": "x"}
        if self.kind == "dataclass":
            return Answer(out, {"sum": out.sum()})
        return out, out.sum(), None


def answers(job: Job, kind: str, out_of: Callable[[Any], torch.Tensor], **options: Any) -> None:
    def loss(model: nn.Module, step: int) -> torch.Tensor:
        return distance(out_of(model(batch(step), batch(step + 50), scale=0.5)), step)

    job.train(Answers(kind), loss, **options)


@situation()
def outputs_in_a_dict(job: Job) -> None:
    answers(job, "dict", lambda found: found["out"], find_unused_parameters=True)


@situation()
def outputs_in_a_dataclass(job: Job) -> None:
    answers(job, "dataclass", lambda found: found.out, find_unused_parameters=True)


@situation()
def outputs_in_a_tuple(job: Job) -> None:
    answers(job, "tuple", lambda found: found[0], static_graph=True)


@situation()
def outputs_that_the_loss_leaves_out(job: Job) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(7)
            self.body, self.other = make_model(), nn.Linear(INPUTS, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.body(x), self.other(x)

    module = Two()

    def loss(model: nn.Module, step: int) -> torch.Tensor:
        out, other = model(batch(step))
        return distance(out, step) + 0.0 * other.sum()

    job.train(module, loss)


@situation()
def batches_of_other_sizes_on_each_rank(job: Job) -> None:
    def loss(model: nn.Module, step: int) -> torch.Tensor:
        return model(batch(step, 3 + 2 * job.rank + step % 3)).square().mean()

    job.train(make_model(), loss)


@situation()
def an_empty_batch_on_one_rank(job: Job) -> None:
    def loss(model: nn.Module, step: int) -> torch.Tensor:
        return model(batch(step, 0 if step == 2 and job.rank else 4)).square().sum()

    job.train(make_model(), loss)


@situation()
def hooks_on_modules(job: Job) -> None:
    def halve(_module: nn.Module, grads: Any, _outs: object) -> Any:
        return (0.5 * grads[0],)

    module = make_model()
    module[2].register_forward_hook(lambda _module, _inputs, out: out * 0.5)
    module[2].register_full_backward_hook(halve)
    job.train(module, loss_of)


@situation()
def anomaly_detection(job: Job) -> None:
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        job.train(make_model(), loss_of)


def compiled(job: Job, backend: str) -> None:
    job.train(torch.compile(make_model(), backend=backend), loss_of, bucket_cap_mb=1)  # type: ignore[arg-type]


@situation(doors=("plain", "identity", "codec", "by hand", "PipeSGD"))
def compiled_eagerly(job: Job) -> None:
    compiled(job, "eager")


@situation(doors=("plain", "backend", "auto"))
def compiled_with_autograd(job: Job) -> None:
    compiled(job, "aot_eager")


@situation(doors=("plain", "identity"))
def compiled_around_ddp(job: Job) -> None:
    model = job.ddp(make_model(), bucket_cap_mb=1)
    outside: Any = torch.compile(model, backend="eager")
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(outside, step).backward()
        job.saw(model)
        optimizer.step()


@pytest.mark.parametrize("row", situation.rows, ids=str)
def test_every_front_door(row: Row, run_processes: Callable[..., list[Any]]) -> None:
    check(row, run_processes)
