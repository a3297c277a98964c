"""The kinds of records that have pages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gradwire import plugins
from gradwire.page import MODULES, kinds, pages_of


@pytest.mark.parametrize("kind", MODULES)
def test_each_kind_has_a_page_of_its_newest_schema(kind: str) -> None:
    pages = pages_of(kind)
    assert pages is not None
    assert {schema.rpartition("/")[0] for schema in pages} == {kind}


def test_other_packages_have_kinds_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"example.run/1": str}
    other = SimpleNamespace(PAGES=pages)
    monkeypatch.setattr(plugins, "names", lambda group: ("example.run",) * (group == plugins.PAGES))
    monkeypatch.setattr(plugins, "entry", lambda _group, kind: other if kind == "example.run" else None)
    assert kinds() == (*MODULES, "example.run")
    assert pages_of("example.run") is pages
    assert pages_of("example.walk") is None
