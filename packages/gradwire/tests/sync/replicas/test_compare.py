"""Replicas that must agree are compared bit for bit, and those that differ are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradwire
from gradwire import DSync
from gradwire.errors import SpecError, StateError
from gradwire.exchange import Exchange
from gradwire.sync.replicas.compare import sha256_of, shared_parameters

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
LR = 2.0**-4


def _train(pipe: gradwire.PipeSGD | DSync, batch_loss: BatchLoss, steps: int) -> None:
    rank = pipe.exchange.link.rank
    for _ in range(steps):
        pipe.step(batch_loss(pipe.model, pipe.steps_done, slice(rank, rank + 1)))


@pytest.mark.parametrize(
    ("wrong", "named"), [([0], "rank 0 differ from those of rank 1"), ([1, 3], "ranks 1, 3 differ")]
)
def test_replicas_that_differ_in_one_bit_are_named_on_every_rank(
    wrong: list[int], named: str, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> str:
        model, rank = make_model(), exchange.link.rank
        *_, bias = model.parameters()
        nn.init.zeros_(bias)
        bias.requires_grad_(False)  # frozen weights count too
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LR)
        with gradwire.PipeSGD(model, optimizer, group=exchange.link) as pipe:
            _train(pipe, batch_loss, 3)
            pipe.check_replicas()
            if rank in wrong:
                bias.data[-1] = -0.0
            with pytest.raises(StateError) as caught:
                pipe.check_replicas()
            pipe.synchronise()
            pipe.check_replicas()
        return str(caught.value)

    texts = run_exchanges(4, body)
    assert all(named in text for text in texts), texts
    assert all("synchronise()" in text for text in texts)


def test_the_hash_covers_every_parameter_and_no_buffer() -> None:
    norm = nn.BatchNorm1d(3)
    model = nn.Sequential(nn.Linear(2, 3), norm)
    assert norm.running_mean is not None
    first = sha256_of(shared_parameters(model))
    norm.running_mean += 1
    assert sha256_of(shared_parameters(model)) == first
    norm.bias.data[2] = 1e-30
    assert sha256_of(shared_parameters(model)) != first


def test_optimizers_that_differ_are_named(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> str:
        model, rank = make_model(), exchange.link.rank
        optimizer = torch.optim.AdamW(model.parameters())
        with gradwire.PipeSGD(model, optimizer, group=exchange.link) as pipe:
            _train(pipe, batch_loss, 4)
            pipe.check_replicas()
            if rank == 1:
                optimizer.state[next(model.parameters())]["exp_avg_sq"].view(torch.int32)[0, 0] ^= 1
            with pytest.raises(StateError) as caught:
                pipe.check_replicas()
        return str(caught.value)

    texts = run_exchanges(3, body)
    assert all("the optimizer states of rank 1 differ from those of rank 0" in text for text in texts), texts


def test_frozen_parameters_and_buffers_that_ddp_ignores_stay_each_ranks_own(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> bool:
        rank = exchange.link.rank
        own = nn.Embedding(2 + rank, 1, _weight=torch.full((2 + rank, 1), float(rank)))  # sizes differ, too
        own.requires_grad_(False)
        model: Any = nn.Sequential(*make_model(), nn.Identity())
        model[3].extra = own
        model[3].register_buffer("rows", torch.arange(3.0 + rank))
        model._ddp_params_and_buffers_to_ignore = ["3.extra.weight", "3.rows"]
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LR)
        with gradwire.PipeSGD(model, optimizer, group=exchange.link) as pipe:
            _train(pipe, batch_loss, 2)
            pipe.synchronise()
            pipe.check_replicas()
        own.weight.requires_grad_(True)
        with pytest.raises(SpecError, match=r"got 3\.extra\.weight, which DDP is set to ignore; freeze"):
            gradwire.PipeSGD(model, optimizer, group=exchange.link)
        return bool((own.weight == rank).all())

    assert all(run_exchanges(3, body))
