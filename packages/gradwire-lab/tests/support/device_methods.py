"""Methods that train a small model, on a simulated device or without one."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial

import torch
from torch import nn

from gradwire import DSync, PipeSGD
from gradwire.devices import device_of
from gradwire.links import Link
from gradwire.plan import Plan
from gradwire.sync.method import WorkerMethod
from gradwire_lab.parameter_server.ps_sync import Server
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.simulated_device.kernels import Kernels
from gradwire_lab.simulated_device.simulated import Simulated

_seeds = threading.Lock()  # one generator is all threads'
Body = Callable[[Link, nn.Module, Callable[[int], torch.Tensor]], object]
STEPS, BATCH = 3, 6


def make_model(hard: bool) -> nn.Module:
    """Return 5 inputs, 2 outputs; the hard one has buffers, and a parameter that nobody reaches."""
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7) if hard else nn.Tanh(), nn.Linear(7, 2))
    if hard:
        model.register_parameter("unreached", nn.Parameter(torch.ones(3)))
    return model


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def trained(link: Link, body: Body, devices: Sequence[Simulated | None], hard: bool) -> list[torch.Tensor]:
    """Return this rank's parameters and buffers after ``body``, trained on its device."""
    device = devices[link.rank]
    with _seeds, torch.random.fork_rng():
        torch.manual_seed(link.rank)  # rank 0's weights come to all
        model = make_model(hard)
    generator = torch.Generator().manual_seed(20 + link.rank)
    x, y = (torch.randn(STEPS, BATCH, size, generator=generator) for size in (5, 2))
    if device is not None:
        x, y = device.own(x), device.own(y)
        device.adopt(model)
    with nullcontext() if device is None else Kernels(device):
        body(link, model, lambda t: nn.functional.mse_loss(model(x[t]), y[t]))
    if device is not None:
        device.synchronize()
    return [each.detach().clone() for each in model.state_dict().values()]


def begin(method: WorkerMethod | Server | StaleServer) -> None:
    """Copy rank 0's weights to all, and count the waits of what follows."""
    method.synchronise()
    device = device_of(next(method.model.parameters()))
    if isinstance(device, Simulated):
        device.synchronize()
        device.waits.clear()


def steps(method: WorkerMethod, loss: Callable[[int], torch.Tensor]) -> None:
    with ExitStack() as stack:
        stack.callback(method.abort)
        begin(method)
        for t in range(STEPS):
            method.step(partial(loss, t))
        method.drain()
        stack.pop_all()
    method.close()


def d_sync(plan: Plan, link: Link, model: nn.Module, loss: Callable[[int], torch.Tensor]) -> None:
    steps(DSync(model, sgd(model), plan, group=link), loss)


def pipe_sgd(
    plan: Plan, correction: str, link: Link, model: nn.Module, loss: Callable[[int], torch.Tensor]
) -> None:
    steps(PipeSGD(model, sgd(model), plan, group=link, correction=correction, max_norm=0.5), loss)


def resumed(plan: Plan, link: Link, model: nn.Module, loss: Callable[[int], torch.Tensor]) -> None:
    """Go on from a state with gradients in flight, with a new method."""
    optimizer = sgd(model)
    first = PipeSGD(model, optimizer, plan, group=link)
    begin(first)
    for t in range(STEPS - 1):
        first.step(partial(loss, t))
    state = first.state_dict()
    first.close()
    second = PipeSGD(model, optimizer, plan, group=link)
    second.load_state_dict(copy.deepcopy(state))
    second.step(partial(loss, STEPS - 1))
    second.drain()
    second.close()


def same(some: list[list[torch.Tensor]], others: list[list[torch.Tensor]]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(torch.equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))
