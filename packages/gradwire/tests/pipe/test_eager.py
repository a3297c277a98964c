from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import Parameter
from torch.optim.lr_scheduler import ExponentialLR

from gradwire.codecs import parse
from gradwire.errors import SpecError, StateError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.flat.update import note_step
from support.pipes import pipe_sgd

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
Optimizer = torch.optim.Optimizer
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.0625),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.0625, momentum=0.9, weight_decay=1e-2, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "loop": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


def _flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def _train(
    exchange: Exchange,
    model: nn.Module,
    make_optimizer: Callable[[Any], Optimizer],
    batch_loss: BatchLoss,
    steps: int,
    decay: float = 1.0,
    **options: Any,
) -> torch.Tensor:
    """Return the weights after every step, and after the drain, one row each."""
    rank, optimizer = exchange.link.rank, make_optimizer(model.parameters())
    schedule = ExponentialLR(optimizer, decay)
    after = []
    with pipe_sgd(model, optimizer, exchange, correction="eager", **options) as method:
        for t in range(steps):
            method.step(batch_loss(model, t, slice(rank, rank + 1)))
            note_step(optimizer)
            schedule.step()
            after.append(_flat(model))
    return torch.stack([*after, _flat(model)])


def _by_hand(
    model: nn.Module,
    make_optimizer: Callable[[Any], Optimizer],
    batch_loss: BatchLoss,
    world: int,
    steps: int,
    pipeline: int,
    max_norm: float = math.inf,
    decay: float = 1.0,
) -> torch.Tensor:
    """Do the same in one process: every rank computes at a copy of model and optimizer that went ahead."""
    optimizer = make_optimizer(model.parameters())
    under_way: list[tuple[list[torch.Tensor], list[list[torch.Tensor]], float]] = []
    after, rate = [], float(optimizer.param_groups[0]["lr"])

    def apply(model: nn.Module, optimizer: Optimizer, gradient: list[torch.Tensor], rate: float) -> None:
        for parameter, part in zip(model.parameters(), gradient, strict=True):
            parameter.grad = part.clone()
        if math.isfinite(max_norm):
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        lr = optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] = torch.tensor(rate) if isinstance(lr, torch.Tensor) else rate
        optimizer.step()

    for t in range(steps):
        if len(under_way) == pipeline:
            average, _, own_rate = under_way.pop(0)
            apply(model, optimizer, average, own_rate)
        own = []
        for rank in range(world):
            ahead, its_optimizer = copy.deepcopy((model, optimizer))
            for _, mine, own_rate in under_way:
                apply(ahead, its_optimizer, mine[rank], own_rate)
            loss = batch_loss(ahead, t, slice(rank, rank + 1))()
            own.append(list(torch.autograd.grad(loss, list(ahead.parameters()))))
        average = [torch.stack(parts).sum(0) / world for parts in zip(*own, strict=True)]
        under_way.append((average, own, rate * decay**t))
        after.append(_flat(model))
    for average, _, own_rate in under_way:
        apply(model, optimizer, average, own_rate)
    return torch.stack([*after, _flat(model)])


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("pipeline", [2, 3, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_computes_where_its_own_gradients_have_gone_ahead_bit_for_bit(
    name: str, pipeline: int, world: int, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    make = OPTIMIZERS[name]
    results = run_exchanges(
        world, lambda e: _train(e, make_model(), make, batch_loss, 8, decay=0.5, pipeline=pipeline)
    )
    wanted = _by_hand(make_model(), make, batch_loss, world, 8, pipeline, decay=0.5)
    assert all(torch.equal(result, wanted) for result in results)
    stale = _by_hand(make_model(), make, batch_loss, 1, 8, 1)
    assert not torch.equal(wanted, stale), "the oracle saw no pipeline"


@pytest.mark.parametrize("world", [3, 4])
def test_more_ranks_differ_by_rounding_only_and_not_from_each_other(
    world: int, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    make = OPTIMIZERS["momentum"]
    results = run_exchanges(world, lambda e: _train(e, make_model(), make, batch_loss, 9, pipeline=3))
    wanted = _by_hand(make_model().double(), make, batch_loss, world, 9, 3)
    torch.testing.assert_close(results[0].double(), wanted, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("max_norm", [0.05, 1e6])
def test_own_gradients_are_clipped_by_their_own_norms(
    max_norm: float, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    make = OPTIMIZERS["SGD"]
    results = run_exchanges(2, lambda e: _train(e, make_model(), make, batch_loss, 8, max_norm=max_norm))
    wanted = _by_hand(make_model(), make, batch_loss, 2, 8, 2, max_norm)
    for result in results:
        torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", ["quantize:8", "topk:0.25", "terngrad"])
def test_masters_have_the_same_bits_on_all_ranks_under_lossy_codecs(
    spec: str, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    make = OPTIMIZERS["AdamW"]
    plan = Plan(parse(spec), bucket_nbytes=100)
    results = run_exchanges(3, lambda e: _train(e, make_model(), make, batch_loss, 8), plan)
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_pipeline_of_one_and_the_warm_up_have_nothing_to_go_ahead_of(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    make = OPTIMIZERS["Adam"]
    single = run_exchanges(2, lambda e: _train(e, make_model(), make, batch_loss, 6, pipeline=1))
    warm = run_exchanges(2, lambda e: _train(e, make_model(), make, batch_loss, 6, warmup_steps=6))
    assert torch.equal(single[0][-1], warm[0][-1])
    wanted = _by_hand(make_model(), make, batch_loss, 2, 6, 1)
    assert torch.equal(single[0], wanted)


def test_hooks_of_the_user_run_for_masters_only(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> tuple[int, int]:
        model, rank, seen = make_model(), exchange.link.rank, []
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
        optimizer.register_step_post_hook(lambda *_: seen.append("after"))
        with pipe_sgd(model, optimizer, exchange, pipeline=3) as method:
            for t in range(7):
                method.step(batch_loss(model, t, slice(rank, rank + 1)))
        return seen.count("before"), seen.count("after")

    assert run_exchanges(2, body) == [(7, 7), (7, 7)]


class _Odd(torch.optim.Optimizer):
    """Keeps state wherever an optimizer can: in groups, in attributes, in lists, lazily."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.0625, "seen": 0})
        self.calls = 0
        for group in self.param_groups:
            group["history"] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "calls": self.calls}  # for the oracle's deepcopy

    def step(self, closure: object = None) -> None:  # type: ignore[override] # noqa: ARG002
        self.calls += 1
        for group in self.param_groups:
            group["seen"] += 1
            group["history"].append(self.calls)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state.setdefault("sum", torch.zeros_like(parameter)).add_(parameter.grad)
                    state.setdefault("sizes", []).append(self.calls)
                    parameter.data.sub_(group["lr"] * state["sum"] * len(group["history"]) ** -0.5)


def test_all_that_an_optimizer_keeps_is_taken_back(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> tuple[torch.Tensor, _Odd]:
        model, rank = make_model(), exchange.link.rank
        optimizer = _Odd([{"params": list(model.parameters())}])
        frozen = Parameter(torch.ones(3), requires_grad=False)
        frozen.grad = torch.ones(3)
        model.register_parameter("frozen", frozen)
        optimizer.add_param_group({"params": [frozen], "history": []})
        held = []
        with pipe_sgd(model, optimizer, exchange) as method:
            for t in range(8):

                def compute(t: int = t) -> torch.Tensor:
                    held.append(frozen.tolist())
                    assert optimizer.calls == max(0, t - 1), "a virtual step was counted"
                    return batch_loss(model, t, slice(rank, rank + 1))()

                method.step(compute)
            in_groups = len(optimizer.state)
        assert in_groups == len(list(make_model().parameters()))
        assert held == [[1.0] * 3] * 8, "a gradient of this rank alone has moved a frozen parameter"
        return _flat(model), optimizer

    wanted = _by_hand(make_model(), _Odd, batch_loss, 2, 8, 2)
    for weights, optimizer in run_exchanges(2, body):
        assert torch.equal(weights[3:], wanted[-1])
        assert optimizer.calls == 8
        assert [group["seen"] for group in optimizer.param_groups] == [8, 8]
        assert optimizer.param_groups[0]["history"] == list(range(1, 9))


def test_a_pass_that_fails_leaves_the_masters_and_the_optimizer(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange, failing: bool) -> torch.Tensor:
        model, rank = make_model(), exchange.link.rank
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        addresses = [parameter.data_ptr() for parameter in model.parameters()]
        with pipe_sgd(model, optimizer, exchange) as method:
            for t in range(6):
                if failing and t == 3:
                    with pytest.raises(ZeroDivisionError):
                        method.step(lambda: torch.ones(()) * (1 // 0))
                    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
                method.step(batch_loss(model, t, slice(rank, rank + 1)))
        return _flat(model)

    failed, whole = (run_exchanges(2, lambda e, f=f: body(e, f)) for f in (True, False))
    assert all(torch.equal(one, whole[0]) for one in (*failed, *whole))


def test_an_own_gradient_that_is_not_finite_makes_no_virtual_update(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> bool:
        model, rank = make_model(), exchange.link.rank
        ahead = []
        with pipe_sgd(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange) as method:
            for t in range(2):
                masters = _flat(model)

                def compute(t: int = t, masters: torch.Tensor = masters) -> torch.Tensor:
                    ahead.append(not torch.equal(_flat(model), masters))
                    loss = batch_loss(model, t, slice(rank, rank + 1))()
                    return loss * math.nan if (t, rank) == (0, 1) else loss

                method.step(compute)
            method.abort()
        assert ahead[0] is False
        return ahead[1]

    assert run_exchanges(2, body) == [True, False]


def test_models_that_write_their_parameters_are_refused(run_exchanges: Ranks) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(torch.ones(3))

        def forward(self) -> torch.Tensor:
            with torch.no_grad():
                self.weight.clamp_(-1, 1)
            return self.weight.sum()

    def body(exchange: Exchange) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Embedding(4, 2, max_norm=1.0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(SpecError, match=r'got max_norm=1 in 1; .* use correction="none"'):
            pipe_sgd(model, optimizer, exchange)
        pipe_sgd(model, optimizer, exchange, correction="none").close()
        writes = Writes()
        method = pipe_sgd(writes, torch.optim.SGD(writes.parameters(), lr=0.1), exchange)
        method.step(writes)
        with pytest.raises(StateError, match=r'got a changed one; use correction="none"'):
            method.step(writes)
        assert torch.equal(writes.weight, torch.ones(3))
        method.close()

    run_exchanges(1, body)


def test_buffers_are_each_ranks_own_until_a_drain(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> list[torch.Tensor]:
        rank, generator = exchange.link.rank, torch.Generator().manual_seed(exchange.link.rank)
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(3)
        model = nn.Sequential(nn.Linear(2, 3), norm)
        model.register_buffer("flag", torch.tensor([True, rank == 0, False]))
        assert norm.running_mean is not None
        seen = []
        with pipe_sgd(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange) as method:
            for _ in range(3):
                method.step(lambda: model(torch.randn(4, 2, generator=generator)).square().mean())
            seen.append(norm.running_mean.clone())
            method.drain()
            seen += [norm.running_mean.clone(), norm.num_batches_tracked, model.flag]  # type: ignore[list-item]
            assert norm.num_batches_tracked is not None
            assert norm.num_batches_tracked.dtype == torch.int64
        return seen

    first, second, third = run_exchanges(3, body)
    assert not torch.equal(first[0], second[0])
    for others in (second, third):
        assert [torch.equal(*pair) for pair in zip(first[1:], others[1:], strict=True)] == [True] * 3
    assert torch.equal(first[1], first[0]), "rank 0's are everyone's"
    assert int(first[2]) == 3


def test_nothing_is_allocated_per_step(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> list[tuple[int, ...]]:
        model, seen = make_model(), []
        with pipe_sgd(model, torch.optim.Adam(model.parameters()), exchange) as method:
            for t in range(8):

                def compute(t: int = t) -> torch.Tensor:
                    seen.append(tuple(parameter.data_ptr() for parameter in model.parameters()))
                    return batch_loss(model, t, slice(0, 1))()

                method.step(compute)
        return seen

    (seen,) = run_exchanges(1, body)
    assert len(set(seen)) == 2, "the masters, then one second set of weights"
    assert len(set(seen[1:])) == 1
