from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradwire.page import Report, options_in_words, render_all
from support.pages import Page

FIELDS = {
    "machine": {"cores": 2, "processor": "<fast>"},
    "versions": {"torch": None, "python": "3"},
    "commit": None,
}


def made_with(*records: tuple[str, Mapping[str, Any]]) -> Page:
    return Page(render_all(Report("A run", "Fast.", []), records))


def test_each_machine_and_version_has_a_table() -> None:
    page = made_with(("a", FIELDS), ("b", {**FIELDS, "commit": "abc+changed"}), ("c", FIELDS))
    assert page.captions == ["Records of a, c", "Record of b"]
    assert ["processor", "<fast>"] in page.rows
    assert ["torch", "unknown"] in page.rows
    assert ["commit", "unknown"] in page.rows
    assert ["commit", "abc+changed"] in page.rows


def test_a_kind_of_record_without_a_commit_says_nothing_of_it() -> None:
    fields = {name: FIELDS[name] for name in ("machine", "versions")}
    assert "commit" not in made_with(("a", fields)).text


def test_options_are_a_sentence() -> None:
    options = {"hosts": [2, 4], "rate": "1gbit", "plan": None, "some": [], "of": {"b": 1, "a": 2}}
    assert options_in_words(options) == (
        'Options: hosts 2, 4; rate 1gbit; plan none; some none; of {"a": 2, "b": 1}.'
    )
    assert options_in_words({}) == "Options: none."
