"""Lossy warnings stay with the row of the cell that they come from."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from gradwire_lab.experiments import perform
from gradwire_lab.experiments.experiment import (
    Cell,
    HeardWarnings,
    Reporter,
    Row,
    lossy_warnings,
    pass_on,
    warnings_in_words,
)
from support.fake_experiment import Options, Squares


def test_a_row_has_those_since_the_last_one(tmp_path: Path) -> None:
    def run(_options: Options, cells: Sequence[Cell], _before: Sequence[Row], report: Reporter) -> None:
        for cell in cells:
            if cell["number"] == 2:
                with ThreadPoolExecutor(1) as pool:
                    for _ in range(2):
                        pool.submit(pass_on, "rank 0: fp8 loses 99.0%").result()
            report({**cell, "square": cell["number"] ** 2})

    experiment = replace(Squares().experiment(), run=run)
    rows = perform(experiment, Options((1, 2, 3)), tmp_path, quiet=True)
    assert [row.get("lossy") for row in rows] == [None, ["rank 0: fp8 loses 99.0%"], None]
    assert json.loads((tmp_path / "record.json").read_text())["rows"] == rows
    assert lossy_warnings(rows) == ("rank 0: fp8 loses 99.0%",)


def test_a_row_keeps_its_own_and_the_logger_its_handlers() -> None:
    before = [*logging.getLogger("gradwire.lossy").handlers]
    with HeardWarnings() as heard:
        pass_on("b")
        assert heard.joined({"lossy": ["a", "b"]}) == {"lossy": ["a", "b"]}
        assert heard.joined({}) == {}
    assert logging.getLogger("gradwire.lossy").handlers == before


def test_several_are_shown_and_the_others_counted() -> None:
    assert warnings_in_words([]) == ""
    assert warnings_in_words("ab") == "Lossy warnings during the measurement: a; b."
    assert warnings_in_words("abcd").endswith(": a; b; c; and 1 more in the record.")
