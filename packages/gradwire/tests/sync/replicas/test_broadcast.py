"""Replicas begin with rank 0's weights and buffers, as DDP's do, and are compared in both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradwire
from gradwire import DSync, Ledger
from gradwire.errors import ExchangeError, StateError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from support.methods import METHODS, TrainingMethod

Ranks = Callable[..., list[Any]]


class RandomFeatures(nn.Module):
    """Linear regression on features that each rank would draw with a seed of its own."""

    features: torch.Tensor
    hidden: torch.Tensor

    def __init__(self, rank: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(rank)
        self.register_buffer("features", torch.randn(3, 5, generator=generator))
        self.register_buffer("hidden", torch.randn(5, 5, generator=generator).double(), persistent=False)
        self.register_buffer("flags", torch.tensor([rank == 1, True, False]))
        self.register_buffer("shared", self.features)
        self.last, self.norm = nn.Linear(5, 1), nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.norm(x @ self.features @ self.hidden.float()))
        return out


@pytest.fixture(params=["d-sync", "none", "eager"])
def method(request: pytest.FixtureRequest) -> TrainingMethod:
    return METHODS[request.param]


def test_buffers_begin_as_those_of_rank_0(method: TrainingMethod, run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> list[torch.Tensor]:
        model = RandomFeatures(exchange.link.rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        made = method.make(model, optimizer, exchange.plan, exchange.link)
        if hasattr(made, "serve"):
            made.serve(1)
        else:
            with made:
                made.step(lambda: model(torch.ones(4, 3)).square().mean())
        assert model.get_buffer("shared") is model.features
        return [model.features, model.hidden, model.get_buffer("flags")]

    wanted = RandomFeatures(0)
    for found in run_exchanges(3, body, method.plan):
        assert torch.equal(found[0], wanted.features)
        assert torch.equal(found[1], wanted.hidden)
        assert torch.equal(found[2], wanted.get_buffer("flags"))


def test_a_ledger_counts_the_buffers_that_travel(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> Any:
        model, ledger = RandomFeatures(exchange.link.rank), Ledger(exchange.link.rank)
        DSync(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            exchange.plan,
            ledger=ledger,
            group=exchange.link,
        ).synchronise()
        return ledger.summary().buckets["buffers"]

    counts = run_exchanges(2, body)[0]
    assert counts.exchanges == 1
    nbytes = 4 * 15 + 3 + 8 * 25 + 4 * (5 + 5) + 8  # features, flags, hidden, and what BatchNorm counts
    assert counts.cost.raw_nbytes == nbytes + -nbytes % 4


def test_buffers_with_bits_of_a_nan_are_no_gradients_that_went_wrong(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> int:
        model, ledger = nn.Linear(3, 1), Ledger(exchange.link.rank)
        model.register_buffer("mask", torch.full((4,), -torch.inf))
        model.register_buffer("ignored", torch.full((4,), -1))
        DSync(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            exchange.plan,
            ledger=ledger,
            group=exchange.link,
        ).synchronise()
        return ledger.summary().total.cost.nonfinite

    assert run_exchanges(2, body) == [0, 0]


@pytest.mark.parametrize(
    ("what", "change", "said"),
    [
        ("parameters", lambda model: setattr(model, "last", nn.Linear(5, 2)), "the parameters of rank 1"),
        ("frozen", lambda model: model.last.bias.requires_grad_(False), "the parameters of rank 1"),
        ("turned", lambda model: setattr(model, "last", nn.Linear(1, 5)), "the parameters of rank 1"),
        ("buffers", lambda model: model.register_buffer("one", torch.ones(1)), "the buffers of rank 1"),
        ("dtypes", lambda model: setattr(model, "flags", torch.ones(3)), "the buffers of rank 1"),
    ],
)
def test_models_that_differ_are_told_on_all_ranks(
    what: str, change: Callable[[Any], object], said: str, run_exchanges: Ranks
) -> None:
    def body(exchange: Exchange) -> str:
        model = RandomFeatures(0)
        if exchange.link.rank == 1:
            change(model)
        method = DSync(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange.plan, group=exchange.link)
        with pytest.raises(
            ExchangeError, match="create and freeze the model identically on all ranks"
        ) as caught:
            method.synchronise()
        return str(caught.value)

    for rank, message in enumerate(run_exchanges(3, body)):
        assert message.startswith(f"rank {rank}: expected the same model on all ranks, but"), what
        assert said in message


def test_replicas_are_compared_in_their_buffers(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> str:
        rank = exchange.link.rank
        model = RandomFeatures(rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with gradwire.PipeSGD(
            model, optimizer, Plan(pipeline=2), correction="none", group=exchange.link
        ) as pipe:
            pipe.step(lambda: model(torch.full((4, 3), 1.0 + rank) + torch.eye(4, 3)).square().mean())
            pipe.check_replicas()  # running statistics differ, as they may
            if rank == 2:
                model.features += 1
            with pytest.raises(StateError, match="bit-identical replicas") as caught:
                pipe.check_replicas()
            pipe.synchronise()
            pipe.check_replicas()
        return str(caught.value)

    for message in run_exchanges(3, body):
        assert "but the buffers of rank 2 differ from those of rank 0" in message
