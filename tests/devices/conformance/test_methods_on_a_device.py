"""Methods train on the simulated device to the CPU's weights, bit for bit, and need each of their waits."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.codecs import parse
from gradwire.devices import Simulated, device_of
from gradwire.devices.kernels import Kernels
from gradwire.errors import GradwireError
from gradwire.links import Link
from gradwire.plan import Plan
from gradwire.training import DSync, PipeSGD, Server, StaleServer, StaleWorker, Worker
from gradwire.training.methods.method import WorkerMethod

RunRanks = Callable[..., list[Any]]
_seeds = threading.Lock()  # one generator is all threads'
Body = Callable[[Link, nn.Module, Callable[[int], torch.Tensor]], object]
STEPS, BATCH = 3, 6
BUCKETED, LOSSY = Plan(bucket_nbytes=80), Plan(parse("quantize:4"), residual=True)
LOSSY_PIPE = Plan(parse("quantize:4"), pipeline=2, residual=True)
STAR = Plan(parse("quantize:4"), "star", residual=True)


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


def resumed(link: Link, model: nn.Module, loss: Callable[[int], torch.Tensor]) -> None:
    """Go on from a state with gradients in flight, with a new method."""
    optimizer = sgd(model)
    first = PipeSGD(model, optimizer, Plan(pipeline=3), group=link)
    begin(first)
    for t in range(STEPS - 1):
        first.step(partial(loss, t))
    state = first.state_dict()
    first.close()
    second = PipeSGD(model, optimizer, Plan(pipeline=3), group=link)
    second.load_state_dict(copy.deepcopy(state))
    second.step(partial(loss, STEPS - 1))
    second.drain()
    second.close()


def server(link: Link, model: nn.Module, loss: Callable[[int], torch.Tensor]) -> None:
    if link.rank == 0:
        method = Server(model, sgd(model), STAR, "bf16", group=link)
        begin(method)
        method.serve(STEPS)
    else:
        steps(Worker(model, STAR, "bf16", group=link), loss)


def stale(staleness: int, link: Link, model: nn.Module, loss: Callable[[int], torch.Tensor]) -> None:
    if link.rank == 0:
        method = StaleServer(model, sgd(model), STAR, staleness, "bf16", group=link)
        begin(method)
        method.serve(STEPS)
    else:
        steps(StaleWorker(model, STAR, staleness, "bf16", group=link), loss)


METHODS: dict[str, tuple[int, Body]] = {
    "DSync, one bucket": (2, partial(d_sync, LOSSY)),
    "DSync, buckets": (2, partial(d_sync, BUCKETED)),
    "PipeSGD, eager": (2, partial(pipe_sgd, Plan(pipeline=2), "eager")),
    "PipeSGD, eager, buckets": (3, partial(pipe_sgd, Plan(pipeline=3, bucket_nbytes=80), "eager")),
    "PipeSGD, stale": (2, partial(pipe_sgd, LOSSY_PIPE, "none")),
    "PipeSGD, resumed": (2, resumed),
    "Server": (3, server),
    "StaleServer, in rounds": (3, partial(stale, 0)),
    "StaleServer, at once": (2, partial(stale, 2)),  # one worker: the order of updates is one
}
NEEDLESS: dict[str, Callable[[str, int], bool]] = {
    "DSync, one bucket": lambda _kind, _number: False,
    "DSync, buckets": lambda _kind, _number: False,
    "PipeSGD, eager": lambda _kind, _number: False,
    # Before a worker's weights are written the host has waited for its gradient, which is computed last.
    "Server": lambda kind, number: kind == "follow" and number % 2 == 1,
}
"""Which waits of the last rank another one makes needless; ``test_seams`` shows that these have a purpose."""


def same(some: list[list[torch.Tensor]], others: list[list[torch.Tensor]]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(torch.equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_it_trains_to_the_weights_of_the_cpu(name: str, run_ranks: RunRanks) -> None:
    world, body = METHODS[name]
    expected = run_ranks(world, trained, body, [None] * world, True)
    assert same(run_ranks(world, trained, body, [Simulated() for _ in range(world)], True), expected)


@pytest.mark.parametrize("name", NEEDLESS)
def test_without_any_one_of_its_waits_it_does_not(name: str, run_ranks: RunRanks) -> None:
    world, body = METHODS[name]
    devices = [Simulated() for _ in range(world)]
    expected = run_ranks(world, trained, body, devices, False)
    last, without = devices[-1].waits, set[tuple[str, int]]()
    for mutation in _every(last):
        mutants = [*devices[:-1], Simulated(without=mutation)]
        try:
            if same(run_ranks(world, trained, body, mutants, False, timeout_s=1.0), expected):
                without.add(mutation)
        except (GradwireError, RuntimeError):
            pass
    assert set(last) == {"follow", "wait", "order"}
    assert without == {each for each in _every(last) if NEEDLESS[name](*each)}


def _every(waits: Mapping[str, int]) -> set[tuple[str, int]]:
    return {(kind, number) for kind, count in waits.items() for number in range(count)}


def test_the_default_device_does_not_matter(run_ranks: RunRanks) -> None:
    def within_another(link: Link, model: nn.Module, loss: Callable[[int], torch.Tensor]) -> None:
        with torch.device("meta"):
            pipe_sgd(Plan(pipeline=2, bucket_nbytes=80), "eager", link, model, loss)

    expected = run_ranks(2, trained, METHODS["PipeSGD, eager"][1], [None] * 2, False)
    assert same(run_ranks(2, trained, within_another, [Simulated(), Simulated()], False), expected)
