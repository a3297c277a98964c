"""Optimizers, models and resumptions that an eager pipeline must take, or refuse in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradwire
from gradwire.errors import SpecError, StateError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from support.pipes import pipe_sgd

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]


def _flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


class _Wrapped(torch.optim.Optimizer):
    """Forwards to another optimizer, as those of frameworks do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    def step(self, closure: object = None) -> None:  # type: ignore[override] # noqa: ARG002
        self.optimizer.step()


def test_an_optimizer_that_wraps_another_is_refused(run_ranks: Ranks, make_model: MakeModel) -> None:
    def body(exchange: Exchange) -> None:
        model = make_model()
        wrapped = _Wrapped(torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(SpecError, match=r"this _Wrapped wraps another one; .* correction=\"none\""):
            pipe_sgd(model, wrapped, exchange)
        pipe_sgd(model, wrapped, exchange, correction="none").close()

    run_ranks(1, body)


class _InAttributes(torch.optim.Optimizer):
    """Momentum whose state is in attributes that every step changes in place."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.velocity = [torch.zeros_like(each) for each in self.param_groups[0]["params"]]
        self.steps = torch.zeros(())

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override] # noqa: ARG002
        self.steps += 1
        for parameter, velocity in zip(self.param_groups[0]["params"], self.velocity, strict=True):
            velocity.mul_(0.9).add_(parameter.grad)
            parameter.sub_(0.1 * velocity)


def test_attributes_that_are_changed_in_place_are_taken_back(
    run_ranks: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> tuple[torch.Tensor, float]:
        model, rank = make_model(), exchange.link.rank
        optimizer = _InAttributes(model.parameters())
        with pipe_sgd(model, optimizer, exchange) as method:
            for t in range(8):
                method.step(batch_loss(model, t, slice(rank, rank + 1)))
        return _flat(model), float(optimizer.steps)

    def plain(exchange: Exchange) -> torch.Tensor:
        model, rank = make_model(), exchange.link.rank
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with pipe_sgd(model, optimizer, exchange) as method:
            for t in range(8):
                method.step(batch_loss(model, t, slice(rank, rank + 1)))
        return _flat(model)

    wanted = run_ranks(2, plain)[0]
    for weights, steps in run_ranks(2, body):
        assert steps == 8
        torch.testing.assert_close(weights, wanted, rtol=1e-5, atol=1e-7)


def test_a_parameter_that_gets_other_memory_on_the_way_is_told(run_ranks: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model = nn.Linear(3, 1)

        def compute() -> torch.Tensor:
            loss = model(torch.ones(2, 3)).square().mean()
            model.weight.data = model.weight.data.clone()
            return loss  # type: ignore[no-any-return]

        method = pipe_sgd(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange)
        method.step(lambda: model(torch.ones(2, 3)).square().mean())
        with pytest.raises(StateError, match="has written a parameter"):
            method.step(compute)
        method.close()

    run_ranks(1, body)


@pytest.mark.parametrize("warmup_steps", [6, 100])
def test_gradients_that_are_loaded_into_a_warm_up_are_applied_first(
    warmup_steps: int, run_ranks: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> list[int]:
        plan, rank = Plan(pipeline=2), exchange.link.rank
        model = make_model()

        def make(warmup_steps: int) -> gradwire.PipeSGD:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            return gradwire.PipeSGD(model, optimizer, plan, warmup_steps=warmup_steps, group=exchange.link)

        def train(pipe: gradwire.PipeSGD, steps: int) -> None:
            for _ in range(steps):
                pipe.step(batch_loss(model, pipe.steps_done, slice(rank, rank + 1)))

        first = make(0)
        train(first, 4)
        state = first.state_dict()
        first.close()
        second = make(warmup_steps)
        second.load_state_dict(state)
        left = [len(second.in_flight())]
        for _ in range(4):
            train(second, 1)
            left.append(len(second.in_flight()))
            assert all(each.own is not None for each in second.in_flight()[-1:])
        second.close()
        return left

    wanted = [2, 0, 0, 1, 2] if warmup_steps == 6 else [2, 0, 0, 0, 0]
    assert run_ranks(2, body) == [wanted] * 2


def test_caches_stay_each_ranks_own_and_expanded_buffers_are_left_alone(run_ranks: Ranks) -> None:
    def body(exchange: Exchange) -> tuple[int, float]:
        rank = exchange.link.rank
        model = nn.Linear(3, 1)
        model.register_buffer("cache", torch.zeros(2 + rank), persistent=False)
        model.register_buffer("wide", torch.zeros(1).expand(3))
        model.register_buffer("seen", torch.full((), float(rank)))
        with pipe_sgd(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange) as method:
            for _ in range(3):
                method.step(lambda: model(torch.ones(2, 3)).square().mean())
        return len(model.cache), float(model.seen)  # type: ignore[arg-type]

    assert run_ranks(2, body) == [(2, 0.0), (3, 0.0)]
