"""The page of a diagnosis: ready or not, what to mend, and everything that was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gradwire.doctor.checks.clock import Offset
from gradwire.doctor.finding import Finding
from gradwire.doctor.report import COLUMNS, SCHEMA, counted, verdict
from gradwire.page import Part, Report, Section, report_page
from gradwire.page.tables import Mark, marked
from gradwire.tables import Column, Table
from gradwire.units import format_duration, format_rate, ranks_in_words

MARKS = MappingProxyType(
    {
        "FAIL": Mark("FAIL", "\u2717", "bad"),
        "warn": Mark("warn", "!", "caution"),
        "ok": Mark("ok", "\u2713", "good"),
    }
)
"""How results look; the worst first."""
SOFTWARE = ("gradwire", "python", "torch", "wire_version", "target", "addresses")
LINES = (
    *map(Column.of_text, ("ranks", "clocks differ by")),
    *map(Column, ("latency", "there", "back")),
)


def page_of(record: Mapping[str, Any]) -> str:
    """Return the page of a doctor's record."""
    findings = [Finding(**each) for each in record["findings"]]
    ranks = [each["rank"] for each in record["ranks"]]
    bad = [each for each in findings if each.result != "ok"]
    said = verdict(findings)
    sections: list[Section] = [
        ("What to do", _findings("What to mend, or to know", bad)),
        ("Findings", _findings("Everything that was looked at", findings)),
        ("Ranks", _ranks(record["ranks"])),
        ("Between ranks", _between(record["clocks"], record["lines"])),
    ]
    title = f"gradwire doctor: {'this machine' if len(ranks) == 1 else ranks_in_words(ranks)}"
    return report_page(Report(title, f"{said[0].upper()}{said[1:]}: {counted(findings)}.", sections), record)


def _findings(caption: str, findings: Sequence[Finding]) -> list[Part]:
    worst = sorted(findings, key=lambda each: [*MARKS].index(each.result))
    rows = [(each.check, marked(MARKS[each.result]), each.detail) for each in worst]
    return [(caption, Table(COLUMNS, rows))] if rows else []


def _ranks(cards: Sequence[Mapping[str, Any]]) -> list[Part]:
    columns = (Column("rank"), *map(Column.of_text, SOFTWARE))
    rows = [(str(card["rank"]), *(_plain(card[name]) for name in SOFTWARE)) for card in cards]
    return [("What the ranks run", Table(columns, rows))]


def _plain(value: object) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _between(clocks: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Return what was measured between rank 0 and each other."""
    offsets = {tuple(each["ranks"]): each for each in clocks}
    looks = {tuple(each["ranks"]): each for each in lines}
    rows = [
        (
            " and ".join(map(str, pair)),
            _offset(offsets[pair]) if pair in offsets else "",
            *(_look(looks[pair]) if pair in looks else ("", "", "")),
        )
        for pair in sorted({*offsets, *looks})
    ]
    return [("Clocks and lines of pairs of ranks", Table(LINES, rows))] if rows else []


def _offset(values: Mapping[str, Any]) -> str:
    return str(Offset(values["offset_s"], values["uncertainty_s"]))


def _look(values: Mapping[str, Any]) -> tuple[str, str, str]:
    rates = (format_rate(values[f"{way}_nbytes_per_s"]) for way in ("there", "back"))
    there, back = rates
    return format_duration(values["latency_s"]), there, back


PAGES = MappingProxyType({SCHEMA: page_of})
"""The page of a record by its schema."""
