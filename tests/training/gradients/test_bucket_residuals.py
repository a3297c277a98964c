"""The residual of a parameter that a rank has not used waits: DDP may throw such an average away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradwire.codecs import parse
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.training.gradients.bucket_residuals import BucketResiduals

PLAN = Plan(parse("topk:0.25"), "star")


def _exchange(
    exchange: Exchange, gradient: torch.Tensor, residuals: list[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    values, together = gradient.clone(), BucketResiduals(residuals)
    exchange.all_reduce(values, average=False, residual=together.lend(values))
    together.keep()
    return values, residuals


def test_what_no_rank_has_used_keeps_its_residuals(run_ranks: Callable[..., list[Any]]) -> None:
    def body(exchange: Exchange) -> tuple[torch.Tensor, list[torch.Tensor]]:
        rank = exchange.link.rank
        gradient = torch.cat([torch.arange(1.0, 9.0) + rank, torch.zeros(8)])
        return _exchange(exchange, gradient, [torch.ones(8), torch.full((8,), 100.0 + rank)])

    found = run_ranks(2, body, PLAN)
    for rank, (total, residuals) in enumerate(found):
        assert total[8:].tolist() == [0.0] * 8
        assert residuals[1].tolist() == [100.0 + rank] * 8
    assert torch.equal(found[0][0], found[1][0])
    exact = 2 * torch.arange(1.0, 9.0) + 1 + 2
    assert torch.equal(found[0][0][:8] + found[0][1][0] + found[1][1][0], exact)


def test_what_one_rank_has_used_keeps_the_sum(run_ranks: Callable[..., list[Any]]) -> None:
    def body(exchange: Exchange) -> tuple[torch.Tensor, list[torch.Tensor]]:
        used = float(exchange.link.rank)
        gradient = torch.cat([torch.arange(1.0, 9.0), used * torch.arange(1.0, 9.0)])
        return _exchange(exchange, gradient, [torch.zeros(8), torch.full((8,), 3.0)])

    found = run_ranks(2, body, PLAN)
    assert torch.equal(found[0][0], found[1][0])
    kept = found[0][1][1] + found[1][1][1]
    assert torch.equal(found[0][0][8:] + kept, torch.arange(1.0, 9.0) + 6.0)


def test_a_plan_without_residuals_has_none_to_keep() -> None:
    residuals, values = BucketResiduals([]), torch.full((4,), torch.inf)
    assert residuals.lend(values) is None
    residuals.note(values, torch.float32)
    assert residuals.usable
    residuals.keep()
