from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gradwire.doctor.finding import Card, Diagnosis, Finding, Look, Offset
from gradwire.doctor.report import describe, page_of
from gradwire.records import to_json
from support.pages import Page

Cards = Callable[..., list[Card]]
FINE, LITTLE = Finding("Python", "ok", "3.12.1"), Finding("memory", "warn", "2 GB are <little>")
BROKEN = Finding("clock", "FAIL", "it stands still; wind it")


def record_of(diagnosis: Diagnosis) -> Any:
    return json.loads(to_json(describe(diagnosis)))


def test_what_is_to_be_done_is_first(make_cards: Cards) -> None:
    html = page_of(record_of(Diagnosis([FINE, LITTLE, BROKEN], make_cards(1), [0])))
    page = Page(html)
    assert page.headings[0] == (1, "gradwire doctor: this machine")
    assert "Training would fail here; fix the checks marked FAIL: 1 ok, 1 warn, 1 FAIL." in page.text
    assert page.rows[1:3] == [
        ["clock", "\u2717 FAIL", "it stands still; wind it"],
        ["memory", "! warn", "2 GB are <little>"],
    ]
    assert "<svg" not in html


def test_a_machine_that_is_well_has_nothing_to_do(make_cards: Cards) -> None:
    page = Page(page_of(record_of(Diagnosis([FINE], make_cards(1), [0]))))
    assert "Ready to train: 1 ok, 0 warn, 0 FAIL." in page.text
    assert "What to do" not in page.text


def test_ranks_their_clocks_and_lines_have_tables(make_cards: Cards) -> None:
    looks, offsets = {1: Look(1e-4, 125e6, 12.5e6)}, {1: Offset(-2e-6, 1e-6), 2: Offset(0.0, 1e-6)}
    page = Page(page_of(record_of(Diagnosis([FINE], make_cards(3), [0, 1, 2], offsets, looks))))
    assert ["0 and 1", "-2us ± 1us", "100us", "1gbit", "100mbit"] in page.rows
    assert ["0 and 2", "+0 ± 1us", "", "", ""] in page.rows
    assert page.headings[0][1] == "gradwire doctor: ranks 0, 1, 2"
