from __future__ import annotations

from gradwire.page.markup import element
from gradwire.page.report import document
from support.pages import Page


def test_a_page_has_one_title_links_to_sections_and_a_policy_that_loads_nothing() -> None:
    html = document("A < b", [("first", "The first")], [element("h2", "The first", id="first")])
    page = Page(html)
    assert html.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert page.headings == [(1, "A < b"), (2, "The first")]
    assert page.links == ["#first"]
    assert {each for each in page.loads if not each.startswith("#")} == {"data:,"}
    policy = next(each["content"] for _, each in page.attributes if "http-equiv" in each)
    assert str(policy).startswith("default-src 'none';")
    tags = [tag for tag, _ in page.attributes]
    assert [tags.count(each) for each in ("header", "nav", "main", "script", "style")] == [1] * 5
