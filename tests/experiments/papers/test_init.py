from __future__ import annotations

import pytest

from gradwire.errors import SpecError
from gradwire.experiments.papers import EXHIBITS, PAPERS, chosen
from support.project import ROOT


def test_each_exhibit_has_a_name_of_its_own_and_belongs_to_a_paper() -> None:
    assert len({each.name for each in EXHIBITS}) == len(EXHIBITS)
    for each in EXHIBITS:
        assert each.paper in PAPERS
        assert each.name not in PAPERS
        assert each.experiment.question.endswith("?")
        assert each.scaling.endswith(".")
        assert 0 < each.seconds[0] <= each.seconds[1]
        for full in (False, True):
            cells = each.experiment.cells(each.options(full))
            assert cells
            assert len({repr(sorted(cell.items())) for cell in cells}) == len(cells)


def test_all_quick_runs_together_are_expected_within_ten_minutes() -> None:
    assert sum(each.seconds[0] for each in EXHIBITS) <= 600


def test_a_paper_an_exhibit_or_all_are_chosen() -> None:
    assert chosen(None) == [*EXHIBITS]
    assert {each.paper for each in chosen("study")} == {"study"}
    assert [each.name for each in chosen("study-figure-8")] == ["study-figure-8"]
    with pytest.raises(
        SpecError, match=r"name a paper \(study, .*\) or one of .* --list, but 'alexnet' came"
    ):
        chosen("alexnet")


def test_the_page_lists_each_in_its_order() -> None:
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    part = page.partition("## What is there")[2].partition("\n## ")[0]
    listed = [line.split("`")[1] for line in part.splitlines() if "`" in line]
    assert listed == [each.name for each in EXHIBITS]
