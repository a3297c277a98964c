"""The table "Where to change ..." of CONTRIBUTING has files, names, tests and pages that exist."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

from support.project import DOCS, ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PLACES = TEXT.split("## Where to change ...\n")[1].split("\n## ")[0]
ROWS = [line.strip("|").split("|") for line in PLACES.splitlines() if line.startswith("|")][2:]
CORE = ROOT / "packages/gradwire"


def test_the_table_covers_the_frequent_changes() -> None:
    assert len(ROWS) >= 7
    assert {len(row) for row in ROWS} == {5}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip())
def test_each_place_exists(row: list[str]) -> None:
    _, file, names, tests, pages = map(quoted, row)
    name = ".".join(["gradwire", *Path(file[0]).with_suffix("").parts]).removesuffix(".__init__")
    module = import_module(name)
    assert module.__file__ is not None
    assert Path(module.__file__).relative_to(CORE / "src/gradwire") == Path(file[0])
    for name in names:
        reduce(getattr, name.split("."), module)
    for each in tests:
        assert (CORE / "tests" / each).is_file() or (ROOT / "tests" / each).is_file(), each
    for each in pages:
        assert (DOCS / each).is_file(), each
    for anchor in re.findall(r"\(#(.+?)\)", row[4]):
        assert anchor in {each.lower().replace("'", "").replace(" ", "-") for each in headings()}, anchor
    assert file
    assert names
    assert tests
    assert pages or "(#" in row[4]


def quoted(cell: str) -> list[str]:
    """Return the words in backticks."""
    return re.findall(r"`(.+?)`", cell)


def headings() -> list[str]:
    """Return the headings of CONTRIBUTING."""
    return re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
