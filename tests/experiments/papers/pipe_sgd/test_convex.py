from __future__ import annotations

from gradwire.experiments import perform
from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.pipe_sgd.convex import EXHIBIT
from gradwire.experiments.papers.pipe_sgd.lengths import Options


def rows(power: float = -0.55, worse: float = 1.2, accuracy: float = 0.95) -> list[dict[str, object]]:
    return [
        {
            "pipeline": pipeline,
            "steps": steps,
            "mean_loss": steps**power * (1 if pipeline == 1 else worse),
            "accuracy": 0.95 if pipeline == 1 else accuracy,
        }
        for pipeline in (1, 2)
        for steps in (50, 100, 200)
    ]


def failed(found: list[dict[str, object]]) -> list[str]:
    return [claim.text for claim in EXHIBIT.claims(found) if not claim.is_met]


def test_verdicts_follow_from_the_losses() -> None:
    assert failed(rows()) == []
    assert failed(rows(power=-0.3)) == ["mean loss over T: slope of the logarithms"]
    assert failed(rows(worse=1.5)) == ["mean loss over sqrt(K) times that with K = 1"]
    assert failed(rows(accuracy=0.9)) == ["accuracy lost by K = 2"]
    assert failed(rows(accuracy=0.96)) == ["accuracy lost by K = 2"]
    faster = EXHIBIT.claims([row | {"seed": 1} for row in rows(power=-0.68)])[0]
    assert not faster.is_met
    assert faster.verdict is Verdict.EXCEEDED


def test_a_layer_that_did_not_learn_proves_nothing() -> None:
    dead = [row | {"accuracy": 0.1} for row in rows()]
    assert {claim.verdict for claim in EXHIBIT.claims(dead)} == {Verdict.DID_NOT_LEARN}


def test_the_layer_is_trained_with_each_number_of_steps_under_way() -> None:
    found = perform(EXHIBIT.experiment, Options((1, 2), (20, 40), (1,)), quiet=True)
    by_cell = {(row["pipeline"], row["steps"]): row for row in found}
    assert by_cell[1, 40]["loss"] < by_cell[1, 20]["loss"] < 2.303, "ln 10 is the loss of zeros"
    assert by_cell[2, 40]["accuracy"] > 0.7
