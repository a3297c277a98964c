from __future__ import annotations

import math

import pytest

from gradwire.page.markup import Markup
from gradwire.page.tables import Mark, Number, magnitude, marked, scrolled, shown, table
from gradwire.tables import Column, Table
from support.pages import Page


def test_a_table_has_a_caption_scopes_and_a_total_at_its_end() -> None:
    made = table(
        "all & sundry", ("what", "how many"), [("a<b", Number("2 MB", 2e6))], ("all", Number("3", 3))
    )
    page = Page(made)
    assert page.captions == ["all & sundry"]
    assert page.rows == [["what", "how many"], ["a<b", "2 MB"], ["all", "3"]]
    assert page.scopes == ["col", "col", "row", "row"]
    assert "<tfoot>" in made
    assert "<tfoot>" not in table("none", ("what",), [("a",)])


@pytest.mark.parametrize(
    ("key", "sorted_by"), [(2e6, "2000000.0"), (0, "0.0"), (None, ""), (math.nan, ""), (math.inf, "")]
)
def test_numbers_are_sorted_by_themselves_and_none_behind_all(key: float | None, sorted_by: str) -> None:
    cells = [
        each
        for tag, each in Page(table("c", ("a", "b"), [("x", Number("-", key))])).attributes
        if tag == "td"
    ]
    assert [each["data-sort"] for each in cells] == [sorted_by]


def test_a_row_that_a_number_names_is_sorted_by_it() -> None:
    made = shown("c", Table((Column("size"), Column("time")), [("64kB", "1s"), ("1MB", "2s")]))
    assert [
        each["data-sort"] for tag, each in Page(made).attributes if tag == "th" and "data-sort" in each
    ] == [
        "64000.0",
        "1000000.0",
    ]


def test_a_box_that_scrolls_is_reached_by_the_keyboard_and_has_a_name() -> None:
    (_, box), *_ = Page(scrolled("wide", Markup("<p>x</p>"))).attributes
    assert (box["tabindex"], box["role"], box["aria-label"]) == ("0", "region", "wide")


def test_a_mark_has_a_word_a_sign_and_a_colour() -> None:
    made = marked(Mark("not well", "!", "bad"))
    assert Page(made).text == "! not well"
    assert 'style="color: var(--bad)"' in made


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
    made = shown("c", Table(columns, [("2 a", "1.5", "4KiB", ""), ("all", "-", "4KiB", "")], has_total=True))
    page = Page(made)
    assert page.rows == [["name", "time (ms)", "size"], ["2 a", "1.5", "4KiB"], ["all", "-", "4KiB"]]
    keys = [each["data-sort"] for tag, each in page.attributes if tag == "td"]
    assert keys == ["1.5", "4096.0", "", "4096.0"]
    assert "<tfoot>" in made
