"""The records of the papers' exhibits that docs/ keeps: complete, judged as docs/reproduce.md says."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from gradwire.cli import main
from gradwire_lab.experiments.page import read_all
from gradwire_lab.experiments.papers import EXHIBITS, PAPERS
from gradwire_lab.experiments.papers.reproduce import MEASURED, NOT_RUN, basis_of, by_basis
from support.project import DOCS

RECORDS = DOCS / "reproduced"
PAGE = (DOCS / "reproduce.md").read_text(encoding="utf-8")


def unmeasured() -> set[str]:
    """Return the exhibits that the page lists as not measured yet."""
    part = PAGE.partition("Not measured yet with their current rules:")[2].partition("\n\n")[0]
    return set(re.findall(r"`([a-z0-9-]+)`", part))


def test_every_exhibit_has_a_finished_record_or_is_listed_without_one() -> None:
    recorded = read_all(RECORDS, EXHIBITS)
    names = [each.judged.exhibit.name for each in recorded]
    assert names == [each.name for each in EXHIBITS if each.name not in unmeasured()]
    assert all(each.fields["finished"] for each in recorded)
    assert all(each.fields["commit"] for each in recorded)
    assert {path.name for path in RECORDS.iterdir()} == {*names}


def test_the_page_counts_their_verdicts() -> None:
    (head,) = re.findall(r"^\| paper \|(.*)\|$", PAGE, re.MULTILINE)
    verdicts = [cell.strip(" `") for cell in head.split("|")]
    recorded = [each.judged for each in read_all(RECORDS, EXHIBITS)]
    found = {paper: Counter[str]() for paper in PAPERS}
    for each in recorded:
        own = [claim for claim in each.claims if basis_of(claim) == MEASURED]
        found[each.exhibit.paper].update(str(claim.verdict) for claim in own)
    for paper, counts in found.items():
        row = re.search(rf"^\| `{paper}` \|(.*)\|$", PAGE, re.MULTILINE)
        assert row is not None, paper
        assert [int(cell) for cell in row[1].split("|")] == [counts[each] for each in verdicts], paper
        assert counts.total() == sum(counts[each] for each in verdicts), "nothing was left out"
    for name, count, words in by_basis(recorded):
        if name == NOT_RUN:
            assert f"Not run, for reasons that the page gives: {count} figure" in PAGE
        elif name != MEASURED:
            assert f"| {name} | {count} | {words} |" in PAGE


@pytest.mark.timeout(300)  # all charts of all records, twice
def test_their_page_is_made_without_measuring_with_the_same_bytes(tmp_path: Path) -> None:
    pages = [tmp_path / "first.html", tmp_path / "second.html"]
    for page in pages:
        assert main(["report", str(RECORDS), "--html", str(page)]) == 0
    first, second = (page.read_bytes() for page in pages)
    assert first == second
    assert all(each.name.encode() in first for each in EXHIBITS)  # those without a record, too
