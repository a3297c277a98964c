from __future__ import annotations

import math

import pytest

from gradwire.page import Details, Mark, Note, Number, PageLink, Part, Report, Section, magnitude, render_all
from gradwire.tables import Column, Table
from support.pages import Page

TEXTS = (Column.of_text("what"), Column.of_text("how many"))


def html_of(*parts: Part) -> str:
    return render_all(Report("A run", "Fast.", [Section("Parts", parts)]), [])


def test_a_table_has_a_caption_scopes_and_a_total_at_its_end() -> None:
    table = Table(TEXTS, [("a<b", Number("2 MB", 2e6)), ("all", Number("3", 3))], has_total=True)
    html = html_of(("all & sundry", table))
    page = Page(html)
    assert page.captions == ["all & sundry"]
    assert page.rows == [["what", "how many"], ["a<b", "2 MB"], ["all", "3"]]
    assert page.scopes == ["col", "col", "row", "row"]
    assert "<tfoot>" in html
    assert "<tfoot>" not in html_of(("none", Table(TEXTS[:1], [("a",)])))


@pytest.mark.parametrize(
    ("key", "sorted_by"), [(2e6, "2000000.0"), (0, "0.0"), (None, ""), (math.nan, ""), (math.inf, "")]
)
def test_numbers_are_sorted_by_themselves_and_none_behind_all(key: float | None, sorted_by: str) -> None:
    page = Page(html_of(("c", Table(TEXTS, [("x", Number("-", key))]))))
    cells = [each for tag, each in page.attributes if tag == "td"]
    assert [each["data-sort"] for each in cells] == [sorted_by]


def test_a_row_that_a_number_names_is_sorted_by_it() -> None:
    page = Page(html_of(("c", Table((Column("size"), Column("time")), [("64kB", "1s"), ("1MB", "2s")]))))
    heads = [each for tag, each in page.attributes if tag == "th" and "data-sort" in each]
    assert [each["data-sort"] for each in heads] == ["64000.0", "1000000.0"]


def test_a_number_has_lines_below_it() -> None:
    html = html_of(("c", Table(TEXTS, [("x", Number("3x", 3.0, ["a<: 2x", "b: 4x"]))])))
    assert ["x", "3xa<: 2xb: 4x"] in Page(html).rows
    assert '<ul class="figures"><li>a&lt;: 2x</li><li>b: 4x</li></ul></td>' in html


def test_a_box_that_scrolls_is_reached_by_the_keyboard_and_has_a_name() -> None:
    page = Page(html_of(("wide", Table(TEXTS, []))))
    (box,) = (each for _, each in page.attributes if each.get("class") == "wide")
    assert (box["tabindex"], box["role"], box["aria-label"]) == ("0", "region", "wide")


def test_a_mark_has_a_word_a_sign_and_a_colour() -> None:
    mark = Mark("not well", "!", "bad")
    html = html_of(mark, ("c", Table(TEXTS, [("x", mark)])))
    assert mark == "not well"
    assert Page(html).rows[1] == ["x", "! not well"]
    assert html.count('style="color: var(--bad)"') == 2


def test_a_link_a_note_and_a_folded_list_are_what_they_are_on_a_page() -> None:
    table = Table(TEXTS, [(PageLink("there <", "parts"), "x")])
    html = html_of(("c", table), Note("a < b"), Details("Why <", ["one <", "two"]))
    page = Page(html)
    assert '<a href="#parts">there &lt;</a></th>' in html
    assert '<p class="note">a &lt; b</p>' in html
    assert page.text.rstrip().endswith("Why <one <two")
    assert {"details", "summary"} <= {tag for tag, _ in page.attributes}


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        ("900ns", "1us"),
        ("900us", "1ms"),
        ("999ms", "1.5s"),
        ("900B", "1kB"),
        ("1023KiB", "1MiB"),
        ("1MB", "1MiB"),
        ("999mbit", "1gbit"),
        ("9.5x", "10x"),
        ("1.2e-05", "0.01"),
        ("-2 ms", "1us"),
        ("0", "1ns"),
        ("99%", "100%"),
    ],
)
def test_texts_with_units_are_in_the_order_of_what_they_mean(smaller: str, larger: str) -> None:
    one, other = magnitude(smaller), magnitude(larger)
    assert one is not None
    assert other is not None
    assert one < other


def test_a_table_for_a_terminal_becomes_one_for_a_page() -> None:
    columns = (Column.of_text("name"), Column("time", "ms"), Column("size"), Column("empty"))
    table = Table(columns, [("2 a", "1.5", "4KiB", ""), ("all", "-", "4KiB", "")], has_total=True)
    html = html_of(("c", table))
    page = Page(html)
    assert page.rows == [["name", "time (ms)", "size"], ["2 a", "1.5", "4KiB"], ["all", "-", "4KiB"]]
    keys = [each["data-sort"] for tag, each in page.attributes if tag == "td"]
    assert keys == ["1.5", "4096.0", "", "4096.0"]
    assert "<tfoot>" in html
