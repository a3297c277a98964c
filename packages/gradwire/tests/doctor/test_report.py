"""What people read of a diagnosis, and what its record holds."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from gradwire.doctor.finding import Card, Diagnosis, Finding
from gradwire.doctor.report import SCHEMA, describe, show_report
from gradwire.records import to_json

Cards = Callable[..., list[Card]]
FINE, LITTLE = Finding("Python", "ok", "3.12.1"), Finding("memory", "warn", "2 GB are little")
BROKEN = Finding("clock", "FAIL", "it stands still")


def test_the_line_below_the_title_counts_and_judges(capsys: pytest.CaptureFixture[str]) -> None:
    show_report("two ranks", Diagnosis([FINE, LITTLE, FINE]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "two ranks"
    assert lines[1] == "2 ok, 1 warn, 0 FAIL: ready to train"
    assert any(line.split() == ["memory", "warn", "2", "GB", "are", "little"] for line in lines)
    show_report("two ranks", Diagnosis([FINE, BROKEN]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "1 ok, 0 warn, 1 FAIL: training would fail here; fix the checks marked FAIL"


@pytest.mark.parametrize("broken", [False, True])
def test_the_record_has_every_finding_and_every_card(broken: bool, make_cards: Cards) -> None:
    cards = make_cards(2, {1: {"target": "scalar"}})
    findings = [FINE, BROKEN] if broken else [FINE, LITTLE]
    record = json.loads(to_json(describe(Diagnosis(findings, cards, [0, 3]))))
    assert (record["schema"], record["ready"]) == (SCHEMA, not broken)
    assert record["findings"] == [
        {"check": each.check, "result": each.result, "detail": each.detail} for each in findings
    ]
    assert [(each["rank"], each["target"]) for each in record["ranks"]] == [(0, "avx2"), (3, "scalar")]
    for each in record["ranks"]:
        del each["rank"]
    assert [Card.from_dict(each) for each in record["ranks"]] == cards
    assert record["clocks"] == record["lines"] == []
