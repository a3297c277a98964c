"""What the ranks' cards say side by side: who has other versions, kernels or plans than the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.doctor.checks.software import release
from gradwire.doctor.facts import Card
from gradwire.doctor.finding import Finding, Result, name_ranks
from gradwire.links.rendezvous.addresses import VARIABLE


def compare(cards: Sequence[Card]) -> list[Finding]:
    """Return the findings over all ranks' cards, in the order of the ranks."""
    return [
        _alike(
            "same gradwire",
            [card.gradwire for card in cards],
            "FAIL",
            "install the same version on all machines",
        ),
        _alike(
            "same frames",
            [f"version {card.wire_version}" for card in cards],
            "FAIL",
            "install the same gradwire on all machines",
        ),
        _alike_releases("same torch", [card.torch for card in cards]),
        _alike_releases("same Python", [card.python for card in cards]),
        _compare_kernels(cards),
        _compare_interfaces(cards),
        *_compare_plans(cards),
    ]


def groups(values: Sequence[str]) -> dict[str, list[int]]:
    """Return value -> ranks, the value of most ranks first."""
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
    """Warn of other releases; the third number and the build do not change what ranks say."""
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
    digests = groups([card.plan_digest or "no plan" for card in cards])
    if list(digests) == ["no plan"]:
        return []
    remedy = "give all ranks a copy of the same file"
    return [_alike("same plan", [card.plan_digest or "no plan" for card in cards], "FAIL", remedy)]
