from __future__ import annotations

from gradwire.experiments import perform
from gradwire.experiments.papers.pipe_sgd.lengths import Options
from gradwire.experiments.papers.pipe_sgd.strongly_convex import EXHIBIT


def rows(power: float = -1.0, behind: float = 1.5) -> list[dict[str, object]]:
    return [
        {"pipeline": pipeline, "steps": steps, "excess": steps**power * (1 if pipeline == 1 else behind)}
        for pipeline in (1, 2)
        for steps in (100, 400, 1600)
    ]


def failed(found: list[dict[str, object]]) -> list[str]:
    return [claim.text for claim in EXHIBIT.claims(found) if not claim.is_met]


def test_verdicts_follow_from_the_excess() -> None:
    assert failed(rows()) == []
    assert failed(rows(power=-0.5)) == ["excess loss over T: slope of the logarithms"]
    assert failed(rows(behind=2.5)) == ["excess loss after T steps over that with K = 1"]


def test_longer_trainings_come_closer() -> None:
    found = perform(EXHIBIT.experiment, Options((2,), (20, 200), (1,)), quiet=True)
    assert 0 < found[1]["excess"] < found[0]["excess"] < 15
