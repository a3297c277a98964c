from __future__ import annotations

from gradwire.page import Report, Section, render_all
from gradwire.tables import Column, Table
from support.pages import Page

EVIL = "<script>&\"'"


def test_a_page_has_one_title_and_a_policy_that_loads_nothing() -> None:
    html = render_all(Report("A < b", "Fast.", [Section("The first", ["One."], link="first")]), [])
    page = Page(html)
    assert html.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert html.endswith("</html>\n")
    assert page.headings == [(1, "A < b"), (2, "The first")]
    assert (page.links, page.ids) == ([], ["all", "theme", "first"])
    assert {each for each in page.loads if not each.startswith("#")} == {"data:,"}
    policy = next(each["content"] for _, each in page.attributes if "http-equiv" in each)
    assert str(policy).startswith("default-src 'none';")
    tags = [tag for tag, _ in page.attributes]
    assert [tags.count(each) for each in ("header", "main", "script", "style", "details")] == [1] * 5


def test_text_and_attributes_are_escaped() -> None:
    table = Table((Column.of_text(EVIL), Column(EVIL, EVIL)), [(EVIL, EVIL)])
    html = render_all(Report(EVIL, EVIL, [Section(EVIL, [EVIL, (EVIL, table)])]), [(EVIL, {EVIL: EVIL})])
    page = Page(html)
    assert page.headings == [(1, EVIL), (2, EVIL), (2, "Machine and versions")]
    assert page.captions == [EVIL, f"Record of {EVIL}"]
    assert page.rows[:2] == [[EVIL, f"{EVIL} ({EVIL})"], [EVIL, EVIL]]
    assert ("div", EVIL) in [(tag, each.get("aria-label")) for tag, each in page.attributes]
    assert [tag for tag, _ in page.attributes].count("script") == 1


def test_sections_of_the_next_level_have_headings_inside_of_their_section() -> None:
    inner = Section("Inner", ["Two."])
    page = Page(render_all(Report("A", "Fast.", [Section("Outer", ["One.", inner, "Three."])]), []))
    assert page.headings == [(1, "A"), (2, "Outer"), (3, "Inner")]
    assert page.ids == ["all", "theme", "outer", "inner"]
    assert [page.text.index(word) for word in ("One.", "Two.", "Three.")] == sorted(
        page.text.index(word) for word in ("One.", "Two.", "Three.")
    )


def test_sections_are_folded_except_for_what_the_reader_must_act_on() -> None:
    sections = [Section("Act", ["One."], is_open=True), Section("Read", ["Two."])]
    page = Page(render_all(Report("A", "Slow.", sections), []))
    assert ["open" in each for tag, each in page.attributes if tag == "details"] == [True, False]
    inside = [tag for tag, _ in page.attributes if tag in ("details", "summary", "h2")]
    assert inside == ["details", "summary", "h2"] * 2, "the heading is what opens it"
