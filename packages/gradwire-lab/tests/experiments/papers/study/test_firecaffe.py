from __future__ import annotations

import pytest

from gradwire_lab.experiments import perform
from gradwire_lab.experiments.papers.study.firecaffe import EXHIBIT


def test_the_model_gives_the_row_of_256_gpus_and_altered_rows_fail() -> None:
    rows = [dict(row) for row in perform(EXHIBIT.experiment, EXHIBIT.quick, quiet=True)]
    claims = EXHIBIT.claims(rows)
    assert [str(claim.verdict) for claim in claims] == ["calibrated", "modelled", "modelled", "arithmetic"]
    # Half of 1/47 for communication; twice the GPUs halve the rest, and move 255/256 over 127/128 of it.
    moved = (255 / 256) / (127 / 128)
    assert claims[1].mean == pytest.approx(94 / (0.5 + moved))
    assert claims[2].mean == pytest.approx(moved / (0.5 + moved))
    slower = [row | {"communicate": 2 * row["communicate"]} for row in rows]
    assert [claim.is_met for claim in EXHIBIT.claims(slower)] == [False, False, True, True]


def test_three_weeks_are_no_result_of_the_model() -> None:
    """They are a quotient of published numbers: no row changes it."""
    rows = [dict(row) for row in perform(EXHIBIT.experiment, EXHIBIT.quick, quiet=True)]
    slower = [row | {"communicate": 2 * row["communicate"]} for row in rows]
    for found in (rows, slower):
        assert EXHIBIT.claims(found)[3].mean == 48
        assert str(EXHIBIT.claims(found)[3].verdict) == "arithmetic"
