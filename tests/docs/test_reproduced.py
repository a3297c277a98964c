"""The records of the papers' exhibits that docs/ keeps: complete, judged as docs/reproduce.md says."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from gradwire.cli import main
from gradwire.experiments.claim import Verdict
from gradwire.experiments.page import read_all
from gradwire.experiments.papers import EXHIBITS, PAPERS
from support.project import DOCS

RECORDS = DOCS / "reproduced"
COUNTED = (Verdict.REPRODUCED, Verdict.MODELLED, Verdict.EXPLAINED, Verdict.NOT_REPRODUCED)


def test_every_exhibit_has_a_finished_record_of_one_kind_of_machine() -> None:
    recorded = read_all(RECORDS, EXHIBITS)
    assert [each.judged.exhibit.name for each in recorded] == [each.name for each in EXHIBITS]
    assert all(each.fields["finished"] for each in recorded)
    assert all(each.fields["commit"] for each in recorded)
    kinds = [{**each.fields["machine"], "kernel": None} for each in recorded]  # hosts are rebuilt
    assert all(kind == kinds[0] for kind in kinds)
    assert {path.name for path in RECORDS.iterdir()} == {each.name for each in EXHIBITS}


def test_the_page_counts_their_verdicts() -> None:
    found = {paper: Counter[Verdict]() for paper in PAPERS}
    for each in read_all(RECORDS, EXHIBITS):
        found[each.judged.exhibit.paper].update(claim.verdict for claim in each.judged.claims)
    text = (DOCS / "reproduce.md").read_text(encoding="utf-8")
    for paper, counts in found.items():
        row = re.search(rf"^\| `{paper}` \|(.*)\|$", text, re.MULTILINE)
        assert row is not None, paper
        assert [int(cell) for cell in row[1].split("|")] == [counts[verdict] for verdict in COUNTED], paper
        assert sum(counts.values()) == sum(counts[verdict] for verdict in COUNTED), "nothing was left out"


def test_their_page_is_made_without_measuring_with_the_same_bytes(tmp_path: Path) -> None:
    pages = [tmp_path / "first.html", tmp_path / "second.html"]
    for page in pages:
        assert main(["report", str(RECORDS), "--out", str(page)]) == 0
    first, second = (page.read_bytes() for page in pages)
    assert first == second
    assert all(each.name.encode() in first for each in EXHIBITS)
