from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.codecs import parse
from gradwire.exchange import Exchange
from gradwire.exchange.norms import error_bound, rounding_bound
from gradwire.links import Link
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from support.sums import shares

RunRanks = Callable[..., list[Any]]


def envelope_of(xs: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(xs).abs().sum(0)


@pytest.mark.parametrize("algorithm", ["ring", "pairwise", "star", "tree", "butterfly"])
@pytest.mark.parametrize("spec", ["identity", "bf16", "errbound:2^-10", "quantize:4"])
def test_no_sum_is_further_off(run_ranks: RunRanks, algorithm: str, spec: str) -> None:
    xs = shares(4, 9001, scale=1.0)
    plan = Plan(parse(spec), algorithm, SEGMENT_UNIT_NBYTES)

    def act(link: Link) -> torch.Tensor:
        tensor = xs[link.rank].clone()
        Exchange(link, plan).all_reduce(tensor, average=False)
        return tensor

    exact = torch.stack(xs).double().sum(0)
    allowed = error_bound(plan, envelope_of(xs), 4)
    worst = max((tensor.double() - exact).abs().max().item() for tensor in run_ranks(4, act))
    assert worst <= allowed
    assert allowed < 100 * max(worst, 1e-6), "and it is no wild guess"


def test_it_is_every_ranks_bound_and_the_rounding() -> None:
    """An absolute bound is the same for every partial sum, so it can be added up by hand."""
    envelope = torch.full((10,), 3.0)
    found = error_bound(Plan(parse("errbound:2^-10")), envelope, 5)
    assert found == pytest.approx(5 * 2**-10 + 5 * 3.0 * 2**-23)
    assert error_bound(Plan(), envelope, 5) == rounding_bound(envelope, 5) == 5 * 3.0 * 2**-23
