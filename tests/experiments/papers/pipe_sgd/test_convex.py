from __future__ import annotations

from typing import Any

from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.pipe_sgd.convex import EXHIBIT, measure

SLOPES = [
    f"mean loss over T on digits: slope of the logarithms with K = {k}, over 3 seeds" for k in (1, 2, 4)
]
BEHIND = "mean loss on digits over sqrt(K) times that with K = 1, at each length"


def rows(power: float = -0.5, worse: float = 1.2, accuracy: float = 0.95) -> list[dict[str, Any]]:
    """Return rows of three seeds with a little scatter; with more than one step under way, they are worse."""
    return [
        {
            "pipeline": pipeline,
            "steps": steps,
            "seed": seed,
            "mean_loss": steps ** (power + 0.01 * (seed - 2)) * (1 if pipeline == 1 else worse),
            "accuracy": 0.95 if pipeline == 1 else accuracy,
        }
        for pipeline in (1, 2, 4)
        for steps in (50, 100, 200)
        for seed in (1, 2, 3)
    ]


def verdicts(found: list[dict[str, Any]]) -> dict[str, Verdict]:
    return {claim.title: claim.verdict for claim in EXHIBIT.claims(found)}


def failed(found: list[dict[str, Any]]) -> list[str]:
    return [claim.title for claim in EXHIBIT.claims(found) if not claim.is_met]


def test_verdicts_follow_from_the_losses() -> None:
    assert set(verdicts(rows()).values()) == {Verdict.REPRODUCED}
    assert failed(rows(power=-0.3)) == SLOPES
    assert failed(rows(worse=1.5)) == [BEHIND]
    assert failed(rows(accuracy=0.94)) == ["accuracy on digits lost by K = 2"]
    assert failed(rows(accuracy=0.96)) == ["accuracy on digits lost by K = 2"]


def test_rows_in_another_order_have_the_same_verdicts() -> None:
    assert verdicts(rows(worse=1.5)[::-1]) == verdicts(rows(worse=1.5))


def test_a_loss_that_falls_faster_is_not_reproduced() -> None:
    found = verdicts(rows(power=-0.68))
    assert {found[title] for title in SLOPES} == {Verdict.NOT_REPRODUCED}


def test_short_trainings_that_lose_more_neither_win_nor_hide_behind_long_ones() -> None:
    """With more steps under way, a loss that begins higher and catches up falls with a steeper slope."""
    slow = [
        row | {"mean_loss": row["mean_loss"] * (100 / row["steps"] if row["pipeline"] > 1 else 1)}
        for row in rows()
    ]
    found = verdicts(slow)
    assert [found[title] for title in SLOPES] == [Verdict.REPRODUCED, *[Verdict.NOT_REPRODUCED] * 2]
    assert found[BEHIND] is Verdict.NOT_REPRODUCED


def test_a_layer_that_did_not_learn_proves_nothing() -> None:
    dead = [row | {"accuracy": 0.1} for row in rows()]
    assert set(verdicts(dead).values()) == {Verdict.DID_NOT_LEARN}
    dead = [row | {"accuracy": 0.1 if row["pipeline"] == 4 else 0.95} for row in rows()]
    assert set(verdicts(dead).values()) == {Verdict.DID_NOT_LEARN}


def test_the_layer_is_trained_by_four_workers_with_each_number_of_steps_under_way() -> None:
    first = measure(EXHIBIT.quick, {"pipeline": 1, "steps": 40, "seed": 1})
    assert first["mean_loss"] < 2.303, "ln 10 is the loss of zeros"
    second = measure(EXHIBIT.quick, {"pipeline": 2, "steps": 40, "seed": 1})
    assert second["accuracy"] > 0.7
    assert second["mean_loss"] != first["mean_loss"]
    assert measure(EXHIBIT.quick, {"pipeline": 2, "steps": 40, "seed": 1}) == second, "the same bits again"
