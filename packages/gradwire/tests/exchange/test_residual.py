"""A residual changes after a walk that has succeeded, at once or when its owner wants it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.codecs import parse
from gradwire.exchange import Exchange
from gradwire.exchange.feedback import Residual
from gradwire.exchange.request import BucketRequest
from gradwire.exchange.views import ParameterViews
from gradwire.links import Link
from gradwire.plan import Plan
from support.sums import bits, shares

N, WORLD = 300, 3
COUNTS = [100, 0, 150, 50]


def old(rank: int) -> torch.Tensor:
    return shares(WORLD, N + 1, 0.3)[rank][:N].clone()


def exchanged(
    run_ranks: Callable[..., list[Any]], tensors: list[torch.Tensor], codecs: list[str]
) -> list[Any]:
    """Return of each rank what a whole residual becomes, and a residual in parts that waits."""

    def rank(link: Link) -> tuple[torch.Tensor, Residual]:
        exchange = Exchange(link, Plan(parse("quantize:4")))
        views = ParameterViews(tuple(COUNTS), tuple(map(parse, codecs))) if codecs else None
        whole = old(link.rank)
        first, second = (tensors[link.rank].clone() for _ in range(2))
        exchange.run(first, BucketRequest(views=views, residual=whole))
        parts = Residual(torch.split(old(link.rank), COUNTS), torch.full((N,), math.nan), waits=True)
        exchange.run(second, BucketRequest(views=views, residual=parts))
        assert torch.equal(bits(first.nan_to_num()), bits(second.nan_to_num()))
        return whole, parts

    return run_ranks(WORLD, rank)


@pytest.mark.parametrize("codecs", [[], ["quantize:4", "fp8", "identity", "quantize:4"]])
def test_one_that_waits_keeps_its_values_beside_what_the_other_becomes(
    run_ranks: Callable[..., list[Any]], codecs: list[str]
) -> None:
    for number, (whole, parts) in enumerate(exchanged(run_ranks, shares(WORLD, N), codecs)):
        assert torch.equal(torch.cat([*parts.values]), old(number))
        assert torch.equal(bits(parts.lost), bits(whole))
        assert torch.equal(bits(torch.cat([*parts.parts()])), bits(whole))
        assert (parts.finite, parts.replaced) == (True, True)


@pytest.mark.parametrize("codecs", [[], ["quantize:4", "fp8", "identity", "quantize:4"]])
def test_what_is_not_finite_replaces_neither(run_ranks: Callable[..., list[Any]], codecs: list[str]) -> None:
    tensors = shares(WORLD, N)
    tensors[1][7] = math.inf
    for number, (whole, parts) in enumerate(exchanged(run_ranks, tensors, codecs)):
        assert torch.equal(whole[:100], old(number)[:100])
        assert torch.equal(torch.cat([*parts.values]), old(number))
        assert (parts.finite, parts.replaced) == (False, False)


def test_values_that_are_not_finite_are_healed_by_a_walk_that_fails() -> None:
    for waits in (False, True):
        values = [torch.tensor([1.0, math.nan]), torch.tensor([-math.inf])]
        Residual(values, torch.zeros(3), waits=waits).heal()
        assert [bool(each.isfinite().all()) for each in values] == [not waits] * 2
        assert values[0][0] == 1.0
