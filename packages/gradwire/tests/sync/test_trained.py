"""Parameters that are unfrozen on the way: they join on all ranks, with rank 0's weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed._composable.replicate import replicate

import gradwire
from gradwire import DSync
from gradwire.codecs import parse
from gradwire.errors import ExchangeError, SpecError, TensorError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.trained import check_model
from support.branches import (
    OPTIMIZERS,
    assert_close,
    everything,
    frozen_model,
    gradually,
    new_branches,
    unfreeze,
    unfrozen_by_hand,
)
from support.pipes import pipe_sgd

Ranks = Callable[..., list[Any]]


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(("bucket_nbytes", "spec"), [(None, "identity"), (60, "identity"), (60, "topk:0.9")])
@pytest.mark.parametrize("pipeline", [0, 1])
def test_a_parameter_that_is_unfrozen_joins(
    kind: str, bucket_nbytes: int | None, spec: str, pipeline: int, run_exchanges: Ranks
) -> None:
    def body(exchange: Exchange) -> list[torch.Tensor]:
        rank = exchange.link.rank
        model = frozen_model(rank)
        optimizer = OPTIMIZERS[kind](model.parameters())
        method = (
            pipe_sgd(model, optimizer, exchange, pipeline)
            if pipeline
            else DSync(model, optimizer, exchange.plan, group=exchange.link)
        )
        with method:
            for step in range(8):
                unfreeze(model, step)
                method.step(partial(gradually, step, rank, model))
                method.drain()
        return everything(model, optimizer)

    found = run_exchanges(3, body, Plan(parse(spec), bucket_nbytes=bucket_nbytes))
    for each in found:
        assert all(torch.equal(own, first) for own, first in zip(each, found[0], strict=True))
        if spec == "identity":
            assert_close(each, unfrozen_by_hand(kind, 3))


@pytest.mark.parametrize("correction", ["none", "eager"])
def test_a_pipeline_drains_where_a_parameter_is_unfrozen(correction: str, run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> list[torch.Tensor]:
        rank = exchange.link.rank
        model = frozen_model(rank)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        pipe = gradwire.PipeSGD(
            model, optimizer, Plan(pipeline=3), correction=correction, group=exchange.link
        )
        with pipe:
            for step in range(8):
                unfreeze(model, step)
                pipe.step(partial(gradually, step, rank, model))
                assert len(pipe.in_flight()) == (step + 1 if step < 3 else step - 2 if step < 5 else step - 4)
                pipe.check_replicas()
        return [each.detach().clone() for each in model.parameters()]

    found = run_exchanges(2, body)
    begun = list(new_branches().parameters())
    assert all(torch.equal(own, other) for own, other in zip(*found, strict=True))
    assert not any(torch.equal(own, before) for own, before in zip(found[0], begun, strict=True))


def test_a_new_head_joins_with_the_weights_of_rank_0(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> list[torch.Tensor]:
        rank = exchange.link.rank
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with DSync(model, optimizer, exchange.plan, group=exchange.link) as method:
            for step in range(4):
                if step == 2:
                    torch.manual_seed(rank)
                    model[1] = nn.Linear(4, 5)
                    optimizer.add_param_group({"params": list(model[1].parameters())})
                method.step(lambda: model(torch.full((2, 3), 1.0 + rank)).square().mean())
        return [each.detach().clone() for each in model.parameters()]

    first, second = run_exchanges(2, body)
    assert all(torch.equal(own, other) for own, other in zip(first, second, strict=True))
    assert first[2].shape == (5, 4)


def test_ranks_that_unfreeze_other_parameters_are_told(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> str:
        rank = exchange.link.rank
        model = frozen_model()
        method = DSync(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange.plan, group=exchange.link)
        method.step(lambda: gradually(0, rank, model))
        (model.right if rank == 0 else model.trunk).requires_grad_(True)
        with pytest.raises(ExchangeError, match="unfreeze the same parameters on all ranks") as caught:
            method.step(lambda: gradually(1, rank, model))
        method.close()
        return str(caught.value)

    assert run_exchanges(2, body)[1].startswith(
        "rank 1: expected the same trained parameters on all ranks, but those of rank 1"
    )


def test_ranks_that_have_unfrozen_other_parameters_may_repeat_the_step(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> list[torch.Tensor]:
        rank = exchange.link.rank
        layers = [nn.Linear(2, 2, bias=False) for _ in range(3)]
        model = nn.ModuleList(layers).requires_grad_(False)
        layers[0].requires_grad_(True)
        loss = partial(_sum_of_squares, model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with DSync(model, optimizer, exchange.plan, group=exchange.link) as method:
            method.step(loss)
            layers[1 + rank].requires_grad_(True)
            with pytest.raises(ExchangeError, match="unfreeze the same parameters on all ranks"):
                method.step(loss)
            with torch.no_grad():
                layers[1].weight.fill_(1.0 + rank)
                layers[2].weight.fill_(3.0 + rank)
            model.requires_grad_(True)
            method.step(loss)
        return [each.detach().clone() for each in model.parameters()]

    first, second = run_exchanges(2, body)
    assert all(torch.equal(own, other) for own, other in zip(first, second, strict=True))
    assert first[1].flatten().tolist() == pytest.approx([0.8] * 4)  # rank 0's 1, less 0.1 * 2 * 1
    assert first[2].flatten().tolist() == pytest.approx([2.4] * 4)


def test_an_unsupported_parameter_is_refused_in_every_step(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> torch.Tensor:
        rank = exchange.link.rank
        layers = [nn.Linear(2, 2, bias=False) for _ in range(2)]
        model = nn.ModuleList(layers)
        layers[1].double().requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = partial(_sum_of_squares, model)
        method = DSync(model, optimizer, exchange.plan, group=exchange.link)
        method.step(loss)
        before = layers[1].weight.detach().clone()
        layers[1].requires_grad_(True)
        for _ in range(2):
            with pytest.raises(TensorError, match=r"got a torch\.float64 tensor"):
                method.step(lambda: loss() * (1 + rank))
        assert torch.equal(layers[1].weight, before)
        layers[1].float()
        method.step(loss)
        method.close()
        return layers[1].weight.detach().clone()

    first, second = run_exchanges(2, body)
    assert torch.equal(first, second)


def _sum_of_squares(model: nn.Module) -> torch.Tensor:
    return torch.stack([each.square().sum().float() for each in model.parameters()]).sum()


def test_an_old_gradient_of_a_frozen_parameter_moves_nothing(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> torch.Tensor:
        model, rank = new_branches(), exchange.link.rank
        model.right.weight.grad = torch.full_like(model.right.weight, float(rank))
        model.right.requires_grad_(False)
        with DSync(
            model, torch.optim.SGD(model.parameters(), lr=0.1), exchange.plan, group=exchange.link
        ) as method:
            method.step(lambda: gradually(0, rank, model))
        return model.right.weight.detach().clone()

    assert all(torch.equal(each, new_branches().right.weight) for each in run_exchanges(2, body))


def test_a_model_that_replicate_has_changed_is_refused() -> None:
    model = nn.Sequential(replicate(nn.Linear(3, 1)))
    with pytest.raises(SpecError, match=r"own all-reduce, got one with \S+replicate on 0; remove replicate"):
        check_model(model, "PipeSGD")
