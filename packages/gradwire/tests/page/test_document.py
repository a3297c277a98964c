from __future__ import annotations

from gradwire.page import Report, Section
from gradwire.page.report import render_all
from gradwire.tables import Column, Table
from support.pages import Page

EVIL = "<script>&\"'"


def test_a_page_has_one_title_links_to_sections_and_a_policy_that_loads_nothing() -> None:
    html = render_all(Report("A < b", "Fast.", [Section("The first", ["One."], link="first")]), [])
    page = Page(html)
    assert html.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert html.endswith("</html>\n")
    assert page.headings == [(1, "A < b"), (2, "The first")]
    assert (page.links, page.ids) == (["#first"], ["theme", "first"])
    assert ">first</a>" in html
    assert {each for each in page.loads if not each.startswith("#")} == {"data:,"}
    policy = next(each["content"] for _, each in page.attributes if "http-equiv" in each)
    assert str(policy).startswith("default-src 'none';")
    tags = [tag for tag, _ in page.attributes]
    assert [tags.count(each) for each in ("header", "nav", "main", "script", "style")] == [1] * 5


def test_text_and_attributes_are_escaped() -> None:
    table = Table((Column.of_text(EVIL), Column(EVIL, EVIL)), [(EVIL, EVIL)])
    html = render_all(Report(EVIL, EVIL, [Section(EVIL, [EVIL, (EVIL, table)])]), [(EVIL, {EVIL: EVIL})])
    page = Page(html)
    assert page.headings == [(1, EVIL), (2, EVIL), (2, "Machine and versions")]
    assert page.captions == [EVIL, f"Record of {EVIL}"]
    assert page.rows[:2] == [[EVIL, f"{EVIL} ({EVIL})"], [EVIL, EVIL]]
    assert ("div", EVIL) in [(tag, each.get("aria-label")) for tag, each in page.attributes]
    assert [tag for tag, _ in page.attributes].count("script") == 1


def test_sections_of_the_next_level_have_headings_and_no_link_of_their_own() -> None:
    inner = Section("Inner", ["Two."])
    page = Page(render_all(Report("A", "Fast.", [Section("Outer", ["One.", inner, "Three."])]), []))
    assert page.headings == [(1, "A"), (2, "Outer"), (3, "Inner")]
    assert page.links == ["#outer"]
    assert [page.text.index(word) for word in ("One.", "Two.", "Three.")] == sorted(
        page.text.index(word) for word in ("One.", "Two.", "Three.")
    )
