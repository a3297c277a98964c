"""Parameters of unusual kinds, shapes, layouts and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations

from situations.battery import ATTACHED, Job, Row, Table, check
from situations.doors import STEPS
from situations.models import INPUTS, OUTPUTS, batch, distance, loss_at, loss_of, make_model, sgd

situation = Table()
DENSE = "expected trained parameters that are dense float32 tensors"
pytestmark = pytest.mark.processes


@situation()
def an_empty_parameter_and_one_of_one_element(job: Job) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale = make_model(), nn.Parameter(torch.tensor(1.5))
            self.empty, self.one = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * self.scale + self.one + self.empty.sum()

    job.train(Odd(), loss_of)


@situation()
def nothing_but_one_element(job: Job) -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :OUTPUTS] * self.scale

    job.train(Scale(), loss_of)


@situation()
def channels_last(job: Job) -> None:
    torch.manual_seed(7)
    convolution: Any = nn.Conv2d(INPUTS, 8, 3, padding=1)
    convolution.to(memory_format=torch.channels_last)
    module = nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 9, OUTPUTS))

    def loss(model: nn.Module, step: int) -> torch.Tensor:
        image = batch(step).view(4, INPUTS, 1, 1).expand(4, INPUTS, 3, 3)
        return distance(model(image.contiguous(memory_format=torch.channels_last)), step)

    job.train(module, loss)


@situation()
def transposed_memory(job: Job) -> None:
    module = make_model()
    for layer in module:
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
    job.train(module, loss_of)


@situation(doors=("plain", "backend", "codec", "by hand", "PipeSGD"))
def very_many_tiny_parameters(job: Job) -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList(nn.Parameter(torch.full((3,), 1 + i / 1e4)) for i in range(120))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :OUTPUTS] * torch.stack([*self.scales]).mean(0)

    job.train(Many(), loss_of)


@situation()
def tied_weights(job: Job) -> None:
    torch.manual_seed(7)
    first, second = nn.Linear(INPUTS, INPUTS), nn.Linear(INPUTS, INPUTS)
    second.weight = first.weight
    job.train(nn.Sequential(first, nn.Tanh(), second, nn.Linear(INPUTS, OUTPUTS)), loss_of)


@situation()
def a_module_that_is_called_twice(job: Job) -> None:
    torch.manual_seed(7)
    shared = nn.Linear(INPUTS, INPUTS)
    job.train(nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(INPUTS, OUTPUTS)), loss_of)


@situation()
def frozen_parameters(job: Job) -> None:
    module = make_model()
    module[0].requires_grad_(False)
    module[2].bias.requires_grad_(False)
    job.train(module, loss_of, sgd(each for each in module.parameters() if each.requires_grad))


@situation(refused={"attach": "0.weight was unfrozen after DistributedDataParallel was created"})
def unfrozen_later(job: Job) -> None:
    module = make_model()
    module[0].requires_grad_(False)
    trainer = job.trainer(module, sgd(module.parameters()))
    for step in range(STEPS):
        if step == 3:
            trainer.drain()
            module[0].requires_grad_(True)
        trainer.step(loss_at(step))
    trainer.drain()


@situation(doors=ATTACHED)
def unfrozen_and_wrapped_again(job: Job) -> None:
    module = make_model()
    module[0].requires_grad_(False)
    optimizer = sgd(module.parameters())
    model = job.ddp(module)
    for step in range(STEPS):
        if step == 3:
            module[0].requires_grad_(True)
            model = job.ddp(module)
        optimizer.zero_grad()
        loss_of(model, step).backward()
        job.saw(model)
        optimizer.step()


@situation(doors=ATTACHED)
def frozen_later(job: Job) -> None:
    """DDP goes on to wait for its gradient, unless it looks for unused parameters."""
    module = make_model()
    model = job.ddp(module, find_unused_parameters=True)
    optimizer = sgd(module.parameters())
    for step in range(STEPS):
        if step == 3:
            module[0].requires_grad_(False)
        optimizer.zero_grad()
        loss_of(model, step).backward()
        job.saw(model)
        optimizer.step()


def on_a_base(base: torch.Tensor) -> nn.Module:
    """Return a trained head on a frozen base of another dtype, as QLoRA has it."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Parameter(base, requires_grad=False)
            self.head = make_model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x + x @ self.base.float().softmax(0))

    return Adapted()


@situation()
def a_frozen_base_in_bfloat16(job: Job) -> None:
    job.train(on_a_base(torch.eye(INPUTS, dtype=torch.bfloat16)), loss_of)


@situation()
def a_frozen_base_in_uint8(job: Job) -> None:
    job.train(on_a_base(torch.eye(INPUTS, dtype=torch.uint8)), loss_of)


@situation(refused={"attach": "attach: expected dense gradients, got sparse gradients from 0"})
def a_sparse_embedding(job: Job) -> None:
    torch.manual_seed(7)
    module = nn.Sequential(nn.Embedding(20, INPUTS, sparse=True), nn.Linear(INPUTS, OUTPUTS))
    job.train(module, lambda model, step: distance(model(torch.arange(4) + step + job.rank), step))


@situation()
def a_dense_embedding_with_padding(job: Job) -> None:
    torch.manual_seed(7)
    module = nn.Sequential(nn.Embedding(20, INPUTS, padding_idx=0), nn.Linear(INPUTS, OUTPUTS))
    job.train(module, lambda model, step: distance(model(torch.arange(4) + step + job.rank), step))


@situation(refused={"PipeSGD": DENSE})
def parameters_in_bfloat16(job: Job) -> None:
    module = make_model().bfloat16()
    job.train(module, lambda model, step: distance(model(batch(step).bfloat16()), step))


@situation(refused={"PipeSGD": DENSE})
def parameters_in_float16(job: Job) -> None:
    module = make_model().half()
    job.train(module, lambda model, step: distance(model(batch(step).half()), step))


@situation(refused={"PipeSGD": DENSE})
def parameters_in_float64(job: Job) -> None:
    module = make_model().double()
    job.train(module, lambda model, step: distance(model(batch(step).double()), step))


@situation(doors=ATTACHED)
def parameters_of_three_dtypes(job: Job) -> None:
    module = make_model()
    module[2].bfloat16()
    module[4].double()

    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in module:
                weight = next(layer.parameters(), None)
                x = layer(x if weight is None else x.to(weight.dtype))
            return x

    job.train(Casts(), loss_of)


@situation(refused={"PipeSGD": DENSE})
def complex_parameters(job: Job) -> None:
    class Spectrum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(7)
            self.phases = nn.Parameter(torch.randn(3, INPUTS, dtype=torch.complex64))
            self.body = make_model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x + torch.fft.ifft(torch.fft.fft(x) * self.phases.mean(0)).real)

    job.train(Spectrum(), loss_of)


@situation()
def a_weight_norm(job: Job) -> None:
    module = make_model()
    for layer in module[0], module[2]:
        parametrizations.weight_norm(layer)
    job.train(module, loss_of)


@situation()
def a_spectral_norm(job: Job) -> None:
    module = make_model()
    parametrizations.spectral_norm(module[0])
    job.train(module, loss_of, broadcast_buffers=False)


@situation()
def an_orthogonal_parametrization(job: Job) -> None:
    module = make_model()
    parametrizations.orthogonal(module[2])
    job.train(module, loss_of)


@situation(doors=ATTACHED)
def parameters_that_ddp_ignores(job: Job) -> None:
    module = make_model()
    names = ["4.weight", "4.bias"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)
    model = job.ddp(module)
    optimizer = sgd(module[:4].parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        job.saw(module[:4])
        optimizer.step()


@situation()
def a_parameter_group_for_each_kind(job: Job) -> None:
    module = make_model()
    biases = [each for each in module.parameters() if each.dim() == 1]
    weights = [each for each in module.parameters() if each.dim() > 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.01}]
    job.train(module, loss_of, torch.optim.SGD(groups, lr=0.1))


@pytest.mark.parametrize("row", situation.rows, ids=str)
def test_every_front_door(row: Row, run_processes: Callable[..., list[Any]]) -> None:
    check(row, run_processes)
