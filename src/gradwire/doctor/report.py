"""The report: a table on standard output, and a record as JSON."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from gradwire.doctor.finding import Finding, any_failed
from gradwire.doctor.visit import Report

SCHEMA = "gradwire.doctor/1"
"""Changes whenever a field changes its name, unit or meaning."""
WIDTH = 100
_RESULTS = ("ok", "warn", "FAIL")


def table_lines(findings: Sequence[Finding]) -> list[str]:
    """Return the table, at most 100 columns wide unless a single word is longer."""
    columns = [max(map(len, (head, *cells))) for head, cells in _cells(findings).items()]
    lines = [f"{'check':<{columns[0]}}  {'result':<{columns[1]}}  detail", "-" * WIDTH]
    for finding in findings:
        start = f"{finding.check:<{columns[0]}}  {finding.result:<{columns[1]}}  "
        wrapped = textwrap.wrap(
            finding.detail, WIDTH - len(start), break_long_words=False, break_on_hyphens=False
        )
        lines += [start + (wrapped or [""])[0], *(" " * len(start) + line for line in wrapped[1:])]
    return [line.rstrip() for line in lines]


def print_report(title: str, report: Report) -> None:
    """Write title, table and verdict to standard output."""
    counts = [sum(each.result == result for each in report.findings) for result in _RESULTS]
    total = ", ".join(f"{number} {result}" for number, result in zip(counts, _RESULTS, strict=True))
    verdict = (
        "training would fail here; mend what says FAIL" if any_failed(report.findings) else "ready to train"
    )
    lines = [title, "", *table_lines(report.findings), "", f"{total}: {verdict}"]
    sys.stdout.write("\n".join(lines) + "\n")


def describe(report: Report) -> dict[str, object]:
    """Return the record, for JSON."""
    return {
        "schema": SCHEMA,
        "ready": not any_failed(report.findings),
        "findings": [asdict(finding) for finding in report.findings],
        "ranks": [
            {"rank": rank, **card.to_dict()} for rank, card in zip(report.ranks, report.cards, strict=True)
        ],
        "clocks": [{"ranks": [0, rank], **asdict(offset)} for rank, offset in sorted(report.offsets.items())],
        "lines": [{"ranks": [0, rank], **asdict(look)} for rank, look in sorted(report.looks.items())],
    }


def _cells(findings: Sequence[Finding]) -> dict[str, list[str]]:
    return {"check": [each.check for each in findings], "result": [each.result for each in findings]}
