"""Optimizers, models and resumptions that an eager pipeline must take, or refuse in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradwire
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from support.pipes import pipe_sgd

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]


def _flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


@pytest.mark.parametrize("warmup_steps", [6, 100])
def test_gradients_that_are_loaded_into_a_warm_up_are_applied_first(
    warmup_steps: int, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
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
    assert run_exchanges(2, body) == [wanted] * 2


def test_caches_stay_each_ranks_own_and_expanded_buffers_are_left_alone(run_exchanges: Ranks) -> None:
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

    assert run_exchanges(2, body) == [(2, 0.0), (3, 0.0)]
