"""What a check has found, and how findings of many ranks become few."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal

from gradwire.errors import JobError
from gradwire.fields import Source, of, rows, text
from gradwire.plan import Plan

Result = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """One row of the report.

    Parameters
    ----------
    check
        What was looked at, in a word or three.
    result
        ``ok``; ``warn`` where training works, but not as it could; ``FAIL`` where it would not.
    detail
        What was found and, unless all is well, what to do.
    """

    check: str
    result: Result
    detail: str


def any_failed(findings: Iterable[Finding]) -> bool:
    """Return whether training would fail."""
    return any(finding.result == "FAIL" for finding in findings)


def merge(by_rank: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Return the findings of all ranks as few rows.

    What is not ok names its ranks, unless it is all of them. What is ok is one row a check, with the detail
    of the first rank: addresses and free memory differ everywhere. ``by_rank`` is in the order of the ranks.
    """
    makers: dict[tuple[str, Result, str], list[tuple[int, Finding]]] = {}
    for rank, findings in enumerate(by_rank):
        for each in findings:
            detail = "" if each.result == "ok" else each.detail
            makers.setdefault((each.check, each.result, detail), []).append((rank, each))
    checks = list(dict.fromkeys(check for check, _, _ in makers))
    return [
        _as_one(found, len(by_rank)) for check in checks for key, found in makers.items() if key[0] == check
    ]


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ranks in words.

    Examples
    --------
    >>> name_ranks([3, 0, 1, 2, 7]), name_ranks([5])
    ('ranks 0-3, 7', 'rank 5')
    """
    ordered = sorted(ranks)
    runs = []
    for _, run in groupby(enumerate(ordered), lambda each: each[1] - each[0]):
        members = [rank for _, rank in run]
        runs.append(f"{members[0]}-{members[-1]}" if len(members) > 1 else f"{members[0]}")
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(runs)}"


def _as_one(found: Sequence[tuple[int, Finding]], world: int) -> Finding:
    """Return one row for findings of several ranks that differ in their details at most."""
    ranks, first = [rank for rank, _ in found], found[0][1]
    if all(each == first for _, each in found):
        who = "" if len(ranks) == world else f"{name_ranks(ranks)}: "
        return Finding(first.check, first.result, f"{who}{first.detail}")
    detail = f"rank {ranks[0]}: {first.detail}; {name_ranks(ranks[1:])}: ok, too"
    return Finding(first.check, first.result, detail)


# What a rank tells the others of itself, before any of them opens a connection to another.

_SOURCE = Source("a rank's description", "install the same gradwire on all machines", JobError)


@dataclass(frozen=True)
class Card:
    """One rank: its software, its place, its findings.

    Parameters
    ----------
    gradwire, python, torch
        Versions.
    wire_version
        The version of the frames that it sends and reads.
    target
        The instruction set of its kernels.
    kernels_digest
        Of what its kernels made of the fixed vector.
    machine_id
        Equal on ranks of one machine.
    addresses
        Where Gloo would listen.
    loopback
        Whether one of them is reachable from its own machine only.
    plan
        Its plan as JSON, "" without one or where it cannot be read.
    findings
        What it found on its machine.
    """

    gradwire: str
    python: str
    torch: str
    wire_version: int
    target: str
    kernels_digest: str
    machine_id: str
    addresses: tuple[str, ...]
    loopback: bool
    plan: str
    findings: tuple[Finding, ...]

    @property
    def plan_digest(self) -> str:
        """Twelve hexadecimal digits of the plan, "" without one."""
        return hashlib.sha256(self.plan.encode()).hexdigest()[:12] if self.plan else ""

    def to_dict(self) -> dict[str, Any]:
        """Return what ``from_dict`` reads, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Card:
        """Read what another rank's ``to_dict`` wrote. Raises ``JobError`` for another gradwire's card."""
        return _SOURCE.read(values, of(cls, findings=rows(of(Finding, detail=text))))


def plan_text(plan: Plan | None) -> str:
    """Return what two ranks compare: equal for equal plans, however their files are written."""
    return "" if plan is None else plan.to_json()
