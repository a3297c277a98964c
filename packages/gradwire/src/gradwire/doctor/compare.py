"""The ranks side by side: other versions, kernels or plans than the rest, and a trial of the plan."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gradwire.doctor.finding import Card, Finding, Result, name_ranks
from gradwire.doctor.software import fixed_vector, release
from gradwire.errors import GradwireError
from gradwire.exchange import Exchange
from gradwire.exchange.norms import error_bound
from gradwire.links.base import Link
from gradwire.links.rendezvous.addresses import VARIABLE
from gradwire.plan import FLOAT_NBYTES, Plan


def compare(cards: Sequence[Card]) -> list[Finding]:
    """Return the findings over all ranks' cards, in the order of the ranks."""
    versions, frames = [card.gradwire for card in cards], [f"version {card.wire_version}" for card in cards]
    return [
        _alike("same gradwire", versions, "FAIL", "install the same version on all machines"),
        _alike("same frames", frames, "FAIL", "install the same gradwire on all machines"),
        _alike_releases("same torch", [card.torch for card in cards]),
        _alike_releases("same Python", [card.python for card in cards]),
        _compare_kernels(cards),
        _compare_interfaces(cards),
        *_compare_plans(cards),
    ]


def groups(values: Sequence[str]) -> dict[str, list[int]]:
    """Return the ranks of each value, the value of most ranks first."""
    found: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        found.setdefault(value, []).append(rank)
    return dict(sorted(found.items(), key=lambda each: -len(each[1])))


def _who_has_what(found: Mapping[str, Sequence[int]]) -> str:
    return "; ".join(f"{value} on {name_ranks(ranks)}" for value, ranks in found.items())


def _alike(check: str, values: Sequence[str], otherwise: Result, remedy: str) -> Finding:
    found = groups(values)
    if len(found) == 1:
        return Finding(check, "ok", f"{values[0]} on all {len(values)} ranks")
    return Finding(check, otherwise, f"{_who_has_what(found)}: {remedy}")


def _alike_releases(check: str, versions: Sequence[str]) -> Finding:
    """Warn of other releases; the third number and the build do not change what ranks exchange."""
    if len({release(version) or version for version in versions}) > 1:
        return _alike(check, versions, "warn", "the same release on all machines is what is tested")
    return Finding(check, "ok", _who_has_what(groups(versions)))


def _compare_kernels(cards: Sequence[Card]) -> Finding:
    digests = groups([card.kernels_digest for card in cards])
    if len(digests) > 1:
        return _alike(
            "same kernels",
            [f"{card.target or 'no target'} with payloads {card.kernels_digest or 'none'}" for card in cards],
            "FAIL",
            "payloads must be the same bytes; install the same gradwire, or set GRADWIRE_TARGET=scalar",
        )
    return Finding(
        "same kernels", "ok", f"the same payloads; {_who_has_what(groups([c.target for c in cards]))}"
    )


def _compare_interfaces(cards: Sequence[Card]) -> Finding:
    machines = len({card.machine_id for card in cards})
    stuck = [rank for rank, card in enumerate(cards) if card.loopback]
    if machines > 1 and stuck:
        return Finding(
            "reachable",
            "FAIL",
            f"{name_ranks(stuck)}: Gloo would listen at a loopback address, but the ranks are on {machines} "
            f"machines; set {VARIABLE} there to the interface that leads to the others",
        )
    where = "1 machine" if machines == 1 else f"{machines} machines, none at a loopback address"
    return Finding("reachable", "ok", f"{len(cards)} ranks on {where}")


def _compare_plans(cards: Sequence[Card]) -> list[Finding]:
    """Return the finding about plans, none where no rank was given one."""
    digests = [card.plan_digest or "no plan" for card in cards]
    if {*digests} == {"no plan"}:
        return []
    return [_alike("same plan", digests, "FAIL", "give all ranks a copy of the same file")]


# A plan tried once: all ranks sum known vectors with it, and compare bits and errors.

COUNT = (1 << 20) // FLOAT_NBYTES
_PERIOD = 4096 + 3
"""The length after which values repeat; no multiple of a block, so that blocks differ."""


@dataclass(frozen=True)
class Outcome:
    """One rank's result of the trial: the bits of its sum and their error, or the reason for none."""

    digest: str = ""
    largest_error: float = 0.0  # the distance from the exact sum; nan for a sum with values that are nan
    error: str = ""


def try_plan(link: Link, plan: Plan, count: int = COUNT) -> Outcome:
    """Sum ``count`` float32 values of each rank. All ranks call it; errors are in the outcome."""
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
    """Return the largest distance from the exact sum that the plan's codec allows."""
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
        most, others, *_ = groups([outcomes[rank].digest for rank in sorted(outcomes)]).values()
        unlike = f"{name_ranks(others)} ended with other bits than {name_ranks(most)}; please report this"
        return Finding("trial", "FAIL", unlike)
    worst = max(outcome.largest_error for outcome in outcomes.values())
    if not worst <= allowed:
        wrong = f"the sum is wrong by {worst:.3g}, but at most {allowed:.3g} is promised; please report this"
        return Finding("trial", "FAIL", wrong)
    summed = f"1 MiB summed: the same bits on all ranks, at most {worst:.3g} off ({allowed:.3g} allowed)"
    return Finding("trial", "ok", summed)


def _bucket(rank: int, count: int) -> torch.Tensor:
    period = fixed_vector(min(count, _PERIOD), seed=rank + 1)
    return period.repeat(-(-count // period.numel()))[:count].contiguous()
