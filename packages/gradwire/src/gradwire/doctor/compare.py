"""Comparison of all ranks' versions, kernels and plans, and a trial of the plan."""

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
    """Return the findings from comparing all ranks' cards, which are in rank order."""
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
    """Return the ranks with each value, the most frequent value first."""
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
    """Return a warning for different releases; patch number and build do not affect an exchange."""
    if len({release(version) or version for version in versions}) > 1:
        return _alike(check, versions, "warn", "only equal releases are tested; install the same one")
    return Finding(check, "ok", _who_has_what(groups(versions)))


def _compare_kernels(cards: Sequence[Card]) -> Finding:
    digests = groups([card.kernels_digest for card in cards])
    if len(digests) > 1:
        return _alike(
            "same kernels",
            [f"{card.target or 'no target'} with payloads {card.kernels_digest or 'none'}" for card in cards],
            "FAIL",
            "all ranks must encode the same bytes; install the same gradwire, or set GRADWIRE_TARGET=scalar",
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
            f"{name_ranks(stuck)}: expected an address for ranks on {machines} machines, got a loopback "
            f"address; set {VARIABLE} there to the interface that leads to the others",
        )
    where = "1 machine" if machines == 1 else f"{machines} machines, none at a loopback address"
    return Finding("reachable", "ok", f"{len(cards)} ranks on {where}")


def _compare_plans(cards: Sequence[Card]) -> list[Finding]:
    """Return the finding about plans; [] if no rank has one."""
    digests = [card.plan_digest or "no plan" for card in cards]
    if {*digests} == {"no plan"}:
        return []
    return [_alike("same plan", digests, "FAIL", "use a copy of the same file on all ranks")]


# A trial of the plan: all ranks sum known vectors with it, and compare bits and errors.

COUNT = (1 << 20) // FLOAT_NBYTES
_PERIOD = 4096 + 3
"""The period of the values; it isn't a multiple of a block size, so that blocks differ."""


@dataclass(frozen=True)
class Outcome:
    """One rank's result of the trial: the digest of its sum and the error, or the reason for a failure."""

    digest: str = ""
    largest_error: float = 0.0  # the distance from the exact sum; nan for a sum with values that are nan
    error: str = ""


def try_plan(link: Link, plan: Plan, count: int = COUNT) -> Outcome:
    """Return the outcome of summing ``count`` float32 values over all ranks, which all call this."""
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
    """Return the error bound of the trial's sum with the plan's codec."""
    envelope = torch.zeros(count)
    for rank in range(world):
        envelope += _bucket(rank, count).abs()
    return error_bound(plan, envelope, world)


def check_trial(outcomes: Mapping[int, Outcome], allowed: float) -> Finding:
    """Return a finding about the outcomes of all ranks, by rank, given the plan's error bound."""
    failed = [rank for rank, outcome in outcomes.items() if outcome.error]
    if failed:
        reason = f"{name_ranks(failed)} could not run the plan: {outcomes[failed[0]].error}"
        return Finding("trial", "FAIL", reason)
    if len({outcome.digest for outcome in outcomes.values()}) > 1:
        most, others, *_ = groups([outcomes[rank].digest for rank in sorted(outcomes)]).values()
        unlike = (
            f"expected identical bits on all ranks, but those on {name_ranks(others)} differ from those on "
            f"{name_ranks(most)}; please report this"
        )
        return Finding("trial", "FAIL", unlike)
    worst = max(outcome.largest_error for outcome in outcomes.values())
    if not worst <= allowed:
        wrong = f"expected an error of at most {allowed:.3g}, got {worst:.3g}; please report this"
        return Finding("trial", "FAIL", wrong)
    summed = f"1 MiB summed: identical bits on all ranks, an error of {worst:.3g} ({allowed:.3g} allowed)"
    return Finding("trial", "ok", summed)


def _bucket(rank: int, count: int) -> torch.Tensor:
    period = fixed_vector(min(count, _PERIOD), seed=rank + 1)
    return period.repeat(-(-count // period.numel()))[:count].contiguous()
