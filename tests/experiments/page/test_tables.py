from __future__ import annotations

import math

import pytest

from gradwire.experiments.claim import Verdict
from gradwire.experiments.page.markup import Markup
from gradwire.experiments.page.tables import SIGNS, Number, scrolled, table, verdict
from gradwire.experiments.papers.report import NOT_RUN
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


def test_a_box_that_scrolls_is_reached_by_the_keyboard_and_has_a_name() -> None:
    (_, box), *_ = Page(scrolled("wide", Markup("<p>x</p>"))).attributes
    assert (box["tabindex"], box["role"], box["aria-label"]) == ("0", "region", "wide")


def test_each_verdict_has_a_word_and_a_sign_of_its_own() -> None:
    assert {*SIGNS} == {*Verdict, NOT_RUN}
    assert len({*SIGNS.values()}) == len(SIGNS)
    assert Page(verdict("not reproduced")).text.endswith(" not reproduced")
