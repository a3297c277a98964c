"""An exchange tells whether its bucket is finite: one value of one rank is enough, and nothing else is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.codecs import parse
from gradwire.exchange import Exchange
from gradwire.links import Link
from gradwire.plan import Plan
from support.sums import COMPOSED

RunRanks = Callable[..., list[Any]]
COUNT = 10_001


def counts(link: Link, plan: Plan, spoilt: float | None) -> list[int]:
    """Exchange twice, which a transport's own all-reduce needs, then once more without the spoilt value."""
    exchange = Exchange(link, plan)
    residual = torch.zeros(COUNT) if plan.keeps_residual else None
    found = []
    for value in (spoilt, spoilt, None):
        bucket = torch.full((COUNT,), 0.5 + link.rank)
        if value is not None and link.rank == 1 % link.world:
            bucket[7777] = value
        found.append(exchange.all_reduce(bucket, residual=residual).nonfinite)
        assert found[-1] == int(not bucket.isfinite().all())
    return found


@pytest.mark.parametrize("spoilt", [math.nan, -math.inf, None])
@pytest.mark.parametrize("spec", ["identity", "fp8", "topk:0.1"])
@pytest.mark.parametrize(
    "algorithm", ["ring", "pairwise", "star", "tree", "butterfly", "backend", COMPOSED[0]]
)
def test_every_rank_counts_a_bucket_that_is_not_finite(
    algorithm: str, spec: str, spoilt: float | None, run_ranks: RunRanks
) -> None:
    plan = Plan(parse(spec), algorithm, segment_nbytes=1 << 14)
    bad = int(spoilt is not None)
    assert run_ranks(4, counts, plan, spoilt) == [[bad, bad, 0]] * 4


def test_a_rank_alone_counts_too(run_ranks: RunRanks) -> None:
    assert run_ranks(1, counts, Plan(), math.nan) == [[1, 1, 0]]
