from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gradwire.checkpoints import SUM
from gradwire.errors import JobError
from gradwire_lab.experiments.page import page_of
from gradwire_lab.experiments.papers import EXHIBITS, chosen
from support.pages import Page
from support.recorded import STUDY, alter, record


def test_its_question_and_its_tables_are_there(tmp_path: Path) -> None:
    (exhibit,) = chosen("study-section-1-firecaffe")
    fields = json.loads((record(tmp_path, exhibit) / exhibit.name / "record.json").read_text())
    page = Page(page_of(fields, [exhibit.experiment]))
    question = exhibit.experiment.question
    assert f"{question[0].upper()}{question[1:]}" in page.text
    assert page.tables >= 2
    assert "unfinished" not in page.text
    html = page_of(fields, [], [exhibit])
    assert re.search(r"\? [A-Z][^?]*: \d+ figures?\. ", Page(html).text), "its claims answer the question"
    assert html.index("<figure>") < html.index("<table"), "its claims are the hero"
    assert len({*page.captions}) == len(page.captions), "each table has a name of its own"
    with pytest.raises(JobError, match="was altered after it was written: expected the checksum"):
        page_of({**fields, "finished": False}, [exhibit.experiment])
    fields.pop(SUM)  # as older records
    assert "(unfinished)" in page_of({**fields, "finished": False}, [exhibit.experiment])


def test_a_record_of_another_experiment_is_refused() -> None:
    with pytest.raises(JobError, match=r"expected the schema of an experiment, got .*; install the version"):
        page_of({"schema": "gradwire.experiment-none/1", "rows": []}, [STUDY.experiment])


def test_of_exhibits_that_share_an_experiment_the_one_with_its_options_is_judged(tmp_path: Path) -> None:
    (figures,) = chosen("smart-nic-figures-2-and-4")
    fields = json.loads((record(tmp_path, figures) / figures.name / "record.json").read_text())
    html = page_of(fields, [figures.experiment], EXHIBITS)
    assert re.search(r"\? [A-Z][^?]*: \d+ figures?\. ", Page(html).text)
    assert html == page_of(fields, [figures.experiment], [figures])


def test_an_older_record_without_seconds_has_a_page(tmp_path: Path) -> None:
    path = alter(record(tmp_path), STUDY, lambda fields: fields.pop("measured_s"))
    assert "1 reproduced" in Page(page_of(json.loads(path.read_text()), [], [STUDY])).text
