from __future__ import annotations

from dataclasses import replace

from gradwire.page import Picture, Report, Section, render
from gradwire.tables import Column, Table
from support.pages import Page

RECORD = {
    "schema": "gradwire.test/1",
    "machine": {"cores": 2},
    "versions": {"python": "3"},
    "options": {"hosts": 4},
}
TABLE = Table((Column.of_text("run"), Column("step", "ms")), [("a", "1.5"), ("b", "0.9")])
PICTURE = Picture("curve", "a curve", lambda figure: figure.subplots().plot([1, 2]), 2.0)
REPORT = Report(
    "A run",
    "It was <fast>.",
    [
        Section("Step times", ["One word.", ("steps", TABLE)]),
        Section("Nothing", []),
        Section("Curves & bars", [PICTURE]),
    ],
)


def test_the_verdict_is_first_and_every_part_is_there() -> None:
    html = render(REPORT, RECORD)
    page = Page(html)
    assert html.index("It was &lt;fast&gt;.") < html.index("<table")
    assert [text for _, text in page.headings] == [
        "A run",
        "Step times",
        "Curves & bars",
        "Machine and versions",
    ]
    assert page.captions == ["steps", "Record of gradwire.test/1"]
    assert ["b", "0.9"] in page.rows
    assert html.count("<figure>") == 1
    assert "Options: hosts 4." in page.text
    assert {"step-times", "curves-bars", "machine-and-versions"} <= {*page.ids}


def test_the_same_record_gives_the_same_bytes() -> None:
    assert render(REPORT, RECORD) == render(REPORT, {**RECORD})


def test_a_record_without_options_says_nothing_of_them() -> None:
    fields = {name: value for name, value in RECORD.items() if name != "options"}
    assert "Options" not in render(REPORT, fields)


def test_the_verdict_is_followed_by_the_hero_and_that_by_folded_sections() -> None:
    html = render(replace(REPORT, hero=replace(PICTURE, name="hero")), RECORD)
    places = [html.index(part) for part in ("A run</h1>", "It was", 'id="hero-caption"', "<details")]
    assert places == sorted(places)
