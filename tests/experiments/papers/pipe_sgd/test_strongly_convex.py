from __future__ import annotations

from math import log
from typing import Any

import pytest

from gradwire.experiments import perform
from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.pipe_sgd.lengths import Options
from gradwire.experiments.papers.pipe_sgd.strongly_convex import EXHIBIT, measure, published_slope

LENGTHS = (100, 400, 1600)


def rows(power: float = 0.0, behind: float = 1.5) -> list[dict[str, Any]]:
    """Return rows of three seeds whose excess falls as log T / T, and by a power more."""
    return [
        {
            "pipeline": pipeline,
            "steps": steps,
            "seed": seed,
            "excess": log(steps)
            * steps ** (power - 1 + 0.01 * (seed - 2))
            * (1 if pipeline == 1 else behind),
        }
        for pipeline in (1, 2)
        for steps in LENGTHS
        for seed in (1, 2, 3)
    ]


def verdicts(found: list[dict[str, Any]]) -> list[Verdict]:
    return [claim.verdict for claim in EXHIBIT.claims(found)]


def test_the_published_slope_is_that_of_log_t_over_t() -> None:
    # Between T = 100 and 10,000 it doubles the logarithm and divides by 100.
    assert published_slope((100, 10_000)) == pytest.approx(log(2 / 100) / log(100))


def test_verdicts_follow_from_the_excess() -> None:
    good = Verdict.REPRODUCED
    assert verdicts(rows()) == [good] * 4
    assert verdicts(rows(power=-0.1)) == [Verdict.NOT_REPRODUCED, Verdict.NOT_REPRODUCED, good, good]
    assert verdicts(rows(power=0.1)) == [Verdict.NOT_REPRODUCED, Verdict.NOT_REPRODUCED, good, good]
    assert verdicts(rows(behind=2.5)) == [good, good, good, Verdict.NOT_REPRODUCED]


def test_a_short_training_that_is_too_far_behind_fails() -> None:
    found = [row | {"excess": row["excess"] * (2 if row["steps"] == 100 else 1)} for row in rows()]
    late = [old if new["pipeline"] == 1 else new for old, new in zip(rows(), found, strict=True)]
    assert verdicts(late)[3] is Verdict.NOT_REPRODUCED


def test_a_dead_training_fails() -> None:
    dead = [row | {"excess": 12.5} for row in rows()]
    assert verdicts(dead)[:2] == [Verdict.NOT_REPRODUCED] * 2


def test_one_training_has_the_means_of_all_lengths() -> None:
    cells = [{"pipeline": 2, "steps": steps, "seed": 1} for steps in (1, 20, 200)]
    found = [*measure(EXHIBIT.quick, cells)]
    assert [row["steps"] for row in found] == [1, 20, 200]
    assert found[0]["excess"] == pytest.approx(20 * 1.25 / 2), "all weights are 1 at the begin"
    assert 0 < found[2]["excess"] < found[1]["excess"] < found[0]["excess"]


@pytest.mark.processes
def test_seeds_are_measured_side_by_side() -> None:
    found = perform(EXHIBIT.experiment, Options((1,), (5, 10), (1, 2)), quiet=True)
    assert [(row["steps"], row["seed"]) for row in found] == [(5, 1), (10, 1), (5, 2), (10, 2)]
