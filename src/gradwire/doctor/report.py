"""The report: a table on standard output, and a record as JSON."""

from __future__ import annotations

from dataclasses import asdict

from gradwire.doctor.finding import any_failed
from gradwire.doctor.visit import Diagnosis
from gradwire.records import make_record
from gradwire.tables import Column, Table, show

SCHEMA = "gradwire.doctor/1"
COLUMNS = tuple(map(Column.of_text, ("check", "result", "detail")))
_RESULTS = ("ok", "warn", "FAIL")


def show_report(title: str, diagnosis: Diagnosis) -> None:
    """Write title, table and verdict to standard output."""
    counts = [sum(each.result == result for each in diagnosis.findings) for result in _RESULTS]
    total = ", ".join(f"{number} {result}" for number, result in zip(counts, _RESULTS, strict=True))
    verdict = (
        "training would fail here; mend what says FAIL"
        if any_failed(diagnosis.findings)
        else "ready to train"
    )
    rows = [(each.check, each.result, each.detail) for each in diagnosis.findings]
    show(title, "", Table(COLUMNS, rows), "", f"{total}: {verdict}")


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
