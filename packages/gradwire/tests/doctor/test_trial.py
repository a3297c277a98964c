from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gradwire.codecs import parse
from gradwire.doctor.compare import Outcome, _bucket, allowed_error, check_trial, try_plan
from gradwire.links import Link
from gradwire.plan import Plan

COUNT = 20_000


def attempt(link: Link, plan: Plan) -> Outcome:
    return try_plan(link, plan, COUNT)


@pytest.mark.parametrize("algorithm", ["ring", "star", "tree", "butterfly"])
@pytest.mark.parametrize("codec", ["identity", "errbound:2^-10", "quantize:8", "bfp:7x16", "topk:0.01"])
def test_a_plan_that_works_passes(run_ranks: Callable[..., list[Any]], algorithm: str, codec: str) -> None:
    plan = Plan(parse(codec), algorithm, segment_nbytes=1 << 14)
    outcomes = run_ranks(3, attempt, plan)
    finding = check_trial(dict(enumerate(outcomes)), allowed_error(plan, 3, COUNT))
    assert finding.result == "ok", finding


def test_the_error_is_measured_against_the_exact_sum(run_ranks: Callable[..., list[Any]]) -> None:
    exact = sum(_bucket(rank, COUNT).double() for rank in range(2))
    assert isinstance(exact, torch.Tensor)
    (kept, _), (rounded, _) = (
        run_ranks(2, attempt, Plan(parse(codec))) for codec in ("identity", "truncate:20")
    )
    assert kept.largest_error <= 2.0**-23
    assert 2.0**-12 < rounded.largest_error < exact.abs().max().item()
    assert allowed_error(Plan(), 2, COUNT) < rounded.largest_error
    assert rounded.largest_error <= allowed_error(Plan(parse("truncate:20")), 2, COUNT)


GOOD = Outcome("aa", 1e-4)


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        ((GOOD, replace(GOOD, digest="bb"), GOOD), "other bits on rank 1 than on ranks 0, 2"),
        ((GOOD, GOOD, replace(GOOD, largest_error=0.01)), "expected an error of at most 0.001, got 0.01"),
        ((replace(GOOD, largest_error=float("nan")),) * 3, "at most 0.001, got nan"),
        (
            (GOOD, Outcome(error="the reason"), Outcome(error="x")),
            "ranks 1-2 could not run the plan: the reason",
        ),
    ],
)
def test_what_goes_wrong_fails(outcomes: tuple[Outcome, ...], words: str) -> None:
    finding = check_trial(dict(enumerate(outcomes)), 1e-3)
    assert finding.result == "FAIL"
    assert words in finding.detail


def test_ranks_with_other_plans_get_an_error_not_a_sum(run_ranks: Callable[..., list[Any]]) -> None:
    def mixed(link: Link) -> Outcome:
        return try_plan(link, Plan(parse("fp16" if link.rank else "bf16")), COUNT)

    outcomes = run_ranks(2, mixed, timeout_s=5)
    assert any("the codec differs" in outcome.error for outcome in outcomes)
    assert all(outcome.error for outcome in outcomes)
