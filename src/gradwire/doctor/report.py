"""The report: a table on standard output, and a record as JSON."""

from __future__ import annotations

from dataclasses import asdict

from gradwire.doctor.finding import any_failed
from gradwire.doctor.visit import Report
from gradwire.records import make_record
from gradwire.tables import Column, Table, show

SCHEMA = "gradwire.doctor/1"
COLUMNS = tuple(map(Column.of_text, ("check", "result", "detail")))
_RESULTS = ("ok", "warn", "FAIL")


def show_report(title: str, report: Report) -> None:
    """Write title, table and verdict to standard output."""
    counts = [sum(each.result == result for each in report.findings) for result in _RESULTS]
    total = ", ".join(f"{number} {result}" for number, result in zip(counts, _RESULTS, strict=True))
    verdict = (
        "training would fail here; mend what says FAIL" if any_failed(report.findings) else "ready to train"
    )
    rows = [(each.check, each.result, each.detail) for each in report.findings]
    show(title, "", Table(COLUMNS, rows), "", f"{total}: {verdict}")


def describe(report: Report) -> dict[str, object]:
    """Return the record."""
    fields = {
        "ready": not any_failed(report.findings),
        "findings": [asdict(finding) for finding in report.findings],
        "ranks": [
            {"rank": rank, **card.to_dict()} for rank, card in zip(report.ranks, report.cards, strict=True)
        ],
        "clocks": [{"ranks": [0, rank], **asdict(offset)} for rank, offset in sorted(report.offsets.items())],
        "lines": [{"ranks": [0, rank], **asdict(look)} for rank, look in sorted(report.looks.items())],
    }
    return make_record(SCHEMA, fields)
