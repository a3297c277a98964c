"""What a check has found, and how findings of many ranks become few."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

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
