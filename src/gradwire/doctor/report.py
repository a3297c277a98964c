"""The report: a table on standard output, and a record as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from gradwire.doctor.diagnosis import Diagnosis
from gradwire.doctor.finding import Finding, any_failed
from gradwire.records import make_record
from gradwire.tables import Column, Table, show

SCHEMA = "gradwire.doctor/1"
COLUMNS = tuple(map(Column.of_text, ("check", "result", "detail")))
_RESULTS = ("ok", "warn", "FAIL")


def show_report(title: str, diagnosis: Diagnosis) -> None:
    """Write title, table and verdict to standard output."""
    rows = [(each.check, each.result, each.detail) for each in diagnosis.findings]
    show(title, "", Table(COLUMNS, rows), "", f"{counted(diagnosis.findings)}: {verdict(diagnosis.findings)}")


def counted(findings: Sequence[Finding]) -> str:
    """Return how many findings there are of each kind."""
    counts = [sum(each.result == result for each in findings) for result in _RESULTS]
    return ", ".join(f"{number} {result}" for number, result in zip(counts, _RESULTS, strict=True))


def verdict(findings: Sequence[Finding]) -> str:
    """Return whether training would work, and what to do unless it would."""
    return "training would fail here; mend what says FAIL" if any_failed(findings) else "ready to train"


def describe(diagnosis: Diagnosis) -> dict[str, object]:
    """Return the record."""
    fields = {
        "ready": not any_failed(diagnosis.findings),
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "ranks": [
            {"rank": rank, **card.to_dict()}
            for rank, card in zip(diagnosis.ranks, diagnosis.cards, strict=True)
        ],
        "clocks": [
            {"ranks": [0, rank], **asdict(offset)} for rank, offset in sorted(diagnosis.offsets.items())
        ],
        "lines": [{"ranks": [0, rank], **asdict(look)} for rank, look in sorted(diagnosis.looks.items())],
    }
    return make_record(SCHEMA, fields)
