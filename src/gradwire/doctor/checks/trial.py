"""A plan tried once: all ranks sum known vectors with it, and compare bits and errors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gradwire.doctor.checks.compare import groups
from gradwire.doctor.checks.kernels import fixed_vector
from gradwire.doctor.finding import Finding, name_ranks
from gradwire.errors import GradwireError
from gradwire.exchange import Exchange
from gradwire.exchange.error_bound import error_bound
from gradwire.links.base import Link
from gradwire.plan import FLOAT_NBYTES, Plan

COUNT = (1 << 20) // FLOAT_NBYTES
_PERIOD = 4096 + 3
"""Values are repeated from here on; no multiple of a block, so that blocks differ."""


@dataclass(frozen=True)
class Outcome:
    """What a rank's part of the trial came to: the digest of the bits of its sum, or why there is none.

    ``largest_error`` is the distance from the exact sum, nan for a sum with values that are no numbers.
    """

    digest: str = ""
    largest_error: float = 0.0
    error: str = ""


def try_plan(link: Link, plan: Plan, count: int = COUNT) -> Outcome:
    """Sum ``count`` float32 values of each rank. All ranks call it; what goes wrong is in the outcome."""
    bucket = _bucket(link.rank, count)
    try:
        Exchange(link, plan).all_reduce(bucket, average=False)
    except GradwireError as error:
        return Outcome(error=str(error))
    exact = torch.zeros(count, dtype=torch.float64)
    for rank in range(link.world):
        exact += _bucket(rank, count)
    distance = (bucket.double() - exact).abs().max().item()
    return Outcome(hashlib.sha256(bucket.numpy().tobytes()).hexdigest()[:12], distance)


def allowed_error(plan: Plan, world: int, count: int = COUNT) -> float:
    """Return how far a sum may be from the exact one."""
    envelope = torch.zeros(count)
    for rank in range(world):
        envelope += _bucket(rank, count).abs()
    return error_bound(plan, envelope, world)


def check_trial(outcomes: Mapping[int, Outcome], allowed: float) -> Finding:
    """Judge the outcomes of all ranks, by rank, against the error that the plan's codec allows."""
    failed = [rank for rank, outcome in outcomes.items() if outcome.error]
    if failed:
        reason = f"{name_ranks(failed)} could not sum with it: {outcomes[failed[0]].error}"
        return Finding("trial", "FAIL", reason)
    if len({outcome.digest for outcome in outcomes.values()}) > 1:
        unlike = list(groups([outcomes[rank].digest for rank in sorted(outcomes)]).values())
        return Finding(
            "trial",
            "FAIL",
            f"{name_ranks(unlike[1])} ended with other bits than {name_ranks(unlike[0])}; please report this",
        )
    worst = max(outcome.largest_error for outcome in outcomes.values())
    if not worst <= allowed:
        wrong = f"the sum is wrong by {worst:.3g}, but at most {allowed:.3g} is promised; please report this"
        return Finding("trial", "FAIL", wrong)
    return Finding(
        "trial",
        "ok",
        f"1 MiB summed: the same bits on all ranks, at most {worst:.3g} off ({allowed:.3g} allowed)",
    )


def _bucket(rank: int, count: int) -> torch.Tensor:
    period = fixed_vector(min(count, _PERIOD), seed=rank + 1)
    return period.repeat(-(-count // period.numel()))[:count].contiguous()
