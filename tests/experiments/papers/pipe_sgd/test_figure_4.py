from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gradwire.experiments import perform
from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.jobs import Training
from gradwire.experiments.papers.pipe_sgd import figure_4
from gradwire.experiments.papers.pipe_sgd.figure_4 import EXHIBIT, RUNS, Options


def rows(**changed: Mapping[str, float]) -> list[dict[str, object]]:
    steps = {"PS-Sync": 0.9, "D-Sync": 0.5, "D-Sync+T": 0.3, "D-Sync+Q": 0.3}
    return [
        {
            "run": name,
            "seed": 0,
            "accuracy": 0.95,
            "step_s": steps.get(name, 0.2),
            "compute_s": 0.1,
            **changed.get(name, {}),
        }
        for name in RUNS
    ]


def failed(found: list[dict[str, object]]) -> list[str]:
    return [claim.text for claim in EXHIBIT.claims(found) if not claim.is_met]


def test_verdicts_follow_from_accuracies_and_times() -> None:
    assert failed(rows()) == []
    worse = rows(**{"Pipe-SGD": {"accuracy": 0.93}})
    assert failed(worse) == ["accuracy of Pipe-SGD, below D-Sync's"]
    slower = rows(**{"Pipe-SGD+T": {"step_s": 0.3}, "Pipe-SGD+Q": {"step_s": 0.3}})
    assert failed(slower) == [
        "speed-up of Pipe-SGD with T or Q over D-Sync",
        "speed-up of Pipe-SGD with T or Q over PS-Sync",
        "what the pipeline alone saves: step of Pipe-SGD+T over that of D-Sync+T",
        "what the pipeline alone saves: step of Pipe-SGD+Q over that of D-Sync+Q",
    ]
    for step_s in (0.5, 2.0):
        other = rows(**{"PS-Sync": {"step_s": step_s}})
        assert "communication saved by D-Sync, under PS-Sync" in failed(other)


def test_speed_of_a_pipeline_that_did_not_learn_counts_for_nothing() -> None:
    dead = {"accuracy": 0.1}
    found = EXHIBIT.claims(rows(**{"Pipe-SGD+T": dead, "Pipe-SGD+Q": dead}))
    lost = [claim.text for claim in found if claim.verdict is Verdict.DID_NOT_LEARN]
    assert lost == [
        "speed-up of Pipe-SGD with T or Q over D-Sync",
        "speed-up of Pipe-SGD with T or Q over PS-Sync",
        "what the pipeline alone saves: step of Pipe-SGD+T over that of D-Sync+T",
        "what the pipeline alone saves: step of Pipe-SGD+Q over that of D-Sync+Q",
    ]
    both = EXHIBIT.claims([row | dead for row in rows()])
    assert {claim.verdict for claim in both} == {Verdict.DID_NOT_LEARN}


def test_a_job_for_each_correction_trains_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Training] = []

    def train(training: Training) -> list[Mapping[str, Any]]:
        trained.append(training)
        return [{"accuracy": 1.0, "step_s": 1.0, "compute_s": 0.5} for _ in training.runs]

    monkeypatch.setattr(figure_4, "train", train)
    found = perform(EXHIBIT.experiment, Options((3,), 2, "100mbit"), quiet=True)
    assert [row["run"] for row in found] == [*RUNS]
    assert [(each.correction, len(each.runs), each.seed) for each in trained] == [
        ("none", 7, 3),
        ("eager", 1, 3),
    ]
    assert trained[0].runs[:3] == ("server", "sync", "sync:truncate:16")
    assert trained[1].runs == ("pipe:quantize:8",)
