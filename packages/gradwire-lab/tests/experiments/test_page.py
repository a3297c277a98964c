from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gradwire_lab.experiments.page import MARKS, page, read_all
from gradwire_lab.experiments.papers import EXHIBITS, PAPERS, chosen
from support.pages import Page
from support.recorded import BOTH, STUDY, TITLES, alter, record

MODELLED = ("study-section-1-firecaffe", "inceptionn-table-ii", "smart-nic-figures-2-and-4")
"""Exhibits of seconds."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    exhibits = [exhibit for name in MODELLED for exhibit in chosen(name)]
    return record(tmp_path_factory.mktemp("modelled"), *exhibits)


def test_every_exhibit_claim_and_verdict_of_the_records_is_there(folder: Path) -> None:
    recorded = read_all(folder, EXHIBITS)
    html = page(recorded, EXHIBITS, PAPERS)
    found = Page(html)
    rows = {tuple(row[:2]) for row in found.rows}
    assert [each.judged.exhibit.name for each in recorded] == [*MODELLED]
    for each in recorded:
        assert each.judged.exhibit.name in found.ids
        assert each.judged.exhibit.scaling in found.text
        assert each.fields["machine"]["processor"] in found.text
        for claim in each.judged.claims:
            text = " ".join(filter(None, (claim.text, claim.system)))
            assert (text, f"{MARKS[claim.verdict].sign} {claim.verdict}") in rows
    assert html.count("<figure>") == 1 + len(MODELLED), "the verdicts by paper, and a plot of each exhibit"
    assert html.index('id="verdicts-caption"') < html.index("<details")
    for exhibit in EXHIBITS:
        assert exhibit.name in found.text  # those without a record are named, too


def test_the_page_is_sound_and_loads_nothing(folder: Path) -> None:
    html = page(read_all(folder, EXHIBITS), EXHIBITS, PAPERS)
    found = Page(html)
    assert html.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert {each for each in found.loads if not each.startswith("#")} == {"data:,"}
    assert "http:" not in html
    assert "https:" not in html
    assert all(link.startswith("#") and link[1:] in found.ids for link in found.links)
    assert len(found.ids) == len({*found.ids})
    levels = [level for level, _ in found.headings]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert found.headings[1] == (2, "Summary")
    assert len(found.captions) == found.tables
    assert {*found.scopes} == {"col", "row"}
    assert (
        "meta",
        {"name": "viewport", "content": "width=device-width, initial-scale=1"},
    ) in found.attributes
    policy = next(each["content"] for _, each in found.attributes if "http-equiv" in each)
    assert policy is not None
    assert policy.startswith("default-src 'none';")


def test_records_in_any_order_give_the_same_bytes(tmp_path: Path) -> None:
    recorded = read_all(record(tmp_path / "a"), BOTH)
    first = page(recorded, BOTH, TITLES)
    assert page(recorded, BOTH, TITLES) == first
    assert page(recorded[::-1], BOTH, TITLES) == first
    assert page(read_all(record(tmp_path / "b", *BOTH[::-1]), BOTH), BOTH, TITLES) == first


def test_an_altered_record_alters_the_verdict_in_the_page(tmp_path: Path) -> None:
    record(tmp_path)
    before = Page(page(read_all(tmp_path, BOTH), BOTH, TITLES))
    alter(tmp_path, STUDY, lambda fields: [row.update(square=1) for row in fields["rows"]])
    after = Page(page(read_all(tmp_path, BOTH), BOTH, TITLES))
    assert "2 reproduced" in before.text
    assert "1 not reproduced, 1 reproduced" in after.text
    assert [row[1] for row in after.rows if row[0] == "largest (short: numbers)"] == [
        "\u2717 not reproduced",
        "\u2713 reproduced",
    ]


def test_what_a_record_says_is_text_and_never_an_element(tmp_path: Path) -> None:
    evil = "</style><script>alert(1)</script><img src=x>"
    alter(record(tmp_path), STUDY, lambda fields: fields["machine"].update(processor=evil))
    found = Page(page(read_all(tmp_path, BOTH), BOTH, TITLES))
    assert evil in found.text
    assert [tag for tag, _ in found.attributes].count("script") == 1
    assert "a study of <b>squares</b>" in found.text
