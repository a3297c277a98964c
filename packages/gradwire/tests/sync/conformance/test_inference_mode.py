"""Every public call of every method, made within ``torch.inference_mode``, leaves training as without it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradwire
from gradwire import DSync, Sharded, redivide
from gradwire.errors import TensorError
from gradwire.exchange import Exchange
from gradwire.offload.awp import AWP
from support import inference_ranks
from support.inference_ranks import PLAIN, WITHIN, inference_tensors

Ranks = Callable[..., list[Any]]
RunProcesses = Callable[..., list[Any]]
Door = Callable[[], AbstractContextManager[object]]
Make = Callable[[nn.Module, Any, Any], Any]
RESIDUAL = gradwire.Plan(gradwire.parse("topk:0.5"))


def pipe(model: nn.Module, optimizer: Any, link: Any) -> Any:
    return gradwire.PipeSGD(model, optimizer, RESIDUAL, group=link)


def stale_pipe(model: nn.Module, optimizer: Any, link: Any) -> Any:
    return gradwire.PipeSGD(model, optimizer, gradwire.Plan(pipeline=3), correction="none", group=link)


def auto(model: nn.Module, optimizer: Any, link: Any) -> Any:
    return gradwire.PipeSGD(model, optimizer, "auto", group=link)


def d_sync(model: nn.Module, optimizer: Any, link: Any) -> Any:
    return DSync(model, optimizer, RESIDUAL, group=link)


def buckets(model: nn.Module, optimizer: Any, link: Any) -> Any:
    return DSync(model, optimizer, gradwire.Plan(bucket_nbytes=64), group=link)


def sharded(model: nn.Module, optimizer: Any, link: Any) -> Any:
    return Sharded(model, optimizer, "fp8", group=link)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.hidden, self.head = nn.BatchNorm1d(5), nn.Linear(5, 6), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.hidden(self.norm(x)).tanh()).square().mean())


def net() -> Net:
    """Return a new model, always the same; ranks are threads, which share torch's generator."""
    return copy.deepcopy(_NET)


with torch.random.fork_rng():
    torch.manual_seed(3)
    _NET = Net()


def run(make: Make, exchange: Exchange, door: Door) -> list[torch.Tensor]:
    """Train, with each call but steps through ``door``; return the weights and what the optimizer keeps."""
    link, model, number = exchange.link, net(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with door():
        method = make(model, optimizer, link)

    def steps(count: int) -> None:
        nonlocal number
        if hasattr(method, "serve"):
            with door():
                method.serve(count)
        else:
            for _ in range(count):
                number += 1
                x = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * number + link.rank))
                method.step(partial(model, x))
        with door():
            method.drain()

    with door():
        method.synchronise()
    steps(3)
    with door():
        for name in ("check_replicas", "agree_on_buffers", "in_flight", "masters"):
            getattr(method, name, lambda: None)()
        if hasattr(method, "evaluating"):
            with method.evaluating():
                model(torch.ones(2, 5))
    steps(2)
    if isinstance(method, gradwire.PipeSGD):  # with gradients in flight
        method.step(lambda: model(torch.ones(2, 5)))
    with door():
        state = method.state_dict()
        (state,) = redivide([state], 1) if link.world == 1 else (state,)
    steps(1)
    with door():
        method.load_state_dict(state)
    steps(3)
    assert inference_tensors(vars(method), model, optimizer, state) == []
    with door():
        method.drain()
        method.close()
    kept = [each for state in optimizer.state.values() for each in state.values()]
    return [each.detach().clone() for each in (*model.parameters(), *kept)]


CASES: tuple[tuple[Make, int], ...] = (
    (pipe, 1),
    (buckets, 1),
    (sharded, 1),
    (pipe, 2),
    (stale_pipe, 2),
    (auto, 2),
    (d_sync, 2),
    (sharded, 2),
)


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0].__name__}-{case[1]}")
def case(request: pytest.FixtureRequest) -> tuple[Make, int]:
    """Return a method, and how many ranks train by it."""
    found: tuple[Make, int] = request.param
    return found


def test_a_method_trains_on_as_if_nothing_had_been_called_within_it(
    case: tuple[Make, int], run_exchanges: Ranks
) -> None:
    make, world = case
    plain = run_exchanges(world, lambda exchange: run(make, exchange, PLAIN))
    within = run_exchanges(world, lambda exchange: run(make, exchange, WITHIN))
    if make is auto:
        return  # its plan depends on what it measures
    for ours, others in zip(within, plain, strict=True):
        assert len(ours) == len(others) >= 6
        assert all(torch.equal(one, other) for one, other in zip(ours, others, strict=True))


def test_a_step_within_it_is_refused_and_the_next_one_is_taken(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        for make in (pipe, d_sync, sharded):
            model = net()
            method = make(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange.link)
            compute_loss = partial(model, torch.ones(2, 5))
            with torch.inference_mode(), pytest.raises(TensorError, match="without a graph"):
                method.step(compute_loss)
            method.step(compute_loss)
            method.close()

    run_exchanges(1, body)


def test_a_checkpoint_is_read_into_ordinary_tensors(tmp_path: Path) -> None:
    with torch.inference_mode():
        gradwire.save_checkpoint(tmp_path / "rank0.pt", {"exp_avg": torch.ones(2)})
        state = gradwire.load_checkpoint(tmp_path / "rank0.pt")
    state["exp_avg"].add_(1)
    assert inference_tensors(state) == []


def offloaded(policy: str, door: Door, device: Any = "cpu") -> nn.Module:
    """Train with each call but steps through ``door``; ``device`` is the CPU or a simulated one."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    chosen = AWP(threshold=1e9, interval=1) if policy == "awp" else policy
    with door():
        offload = gradwire.HostOffload(model, optimizer, chosen, device=device)
    for number in range(5):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(number))
        x = x if device == "cpu" else device.own(x)
        with door():
            offload.eval()(x)
            offload.train()
            offload.wait()
        optimizer.zero_grad()
        offload(x).backward()
        optimizer.step()
        with door():
            state = offload.state_dict()
            offload.model.state_dict()
        if number == 2:
            with door():
                offload.load_state_dict(state)
                offload.refresh()
    assert inference_tensors(model, optimizer, *offload.replicas) == []
    with door():
        offload.close()
    return model


@pytest.mark.parametrize("policy", ["static:8", "delta", "awp"])
def test_an_offload_trains_on(policy: str) -> None:
    within, plain = offloaded(policy, WITHIN), offloaded(policy, PLAIN)
    assert all(map(torch.equal, within.parameters(), plain.parameters()))


@pytest.mark.processes
@pytest.mark.parametrize("plan", ["topk:0.5", "auto", gradwire.Plan(algorithm="backend")])
def test_an_attached_model_trains_on(plan: Any, run_processes: RunProcesses) -> None:
    within = run_processes(2, inference_ranks.attached, plan, True)
    if plan != "auto":
        assert within == run_processes(2, inference_ranks.attached, plan, False)


@pytest.mark.processes
@pytest.mark.parametrize("weights", ["identity", "bf16", "delta:fp32", None])
def test_an_attached_sharded_model_trains_on(weights: str | None, run_processes: RunProcesses) -> None:
    within = run_processes(2, inference_ranks.attached_fsdp, weights, True)
    assert within == run_processes(2, inference_ranks.attached_fsdp, weights, False)
