from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gradwire.experiments import perform
from gradwire.experiments.papers.inceptionn import figure_12
from gradwire.experiments.papers.inceptionn.figure_12 import EXHIBIT, Options
from gradwire.experiments.papers.jobs import Training


def rows(accuracy: float = 0.95, **steps: float) -> list[dict[str, object]]:
    """Steps of which WA communicates for three quarters; ``accuracy`` is that of the runs with the codec."""
    usual = {"WA": 1.0, "WA+C": 0.77, "INC": 0.6, "INC+C": 0.41} | steps
    return [
        {
            "run": name,
            "step_s": seconds,
            "compute_s": 0.25,
            "accuracy": accuracy if name.endswith("+C") else 0.95,
        }
        for _seed in range(3)
        for name, seconds in usual.items()
    ]


def verdicts(found: list[dict[str, object]]) -> list[str]:
    return [str(claim.verdict) for claim in EXHIBIT.claims(found)]


def test_verdicts_follow_from_the_times() -> None:
    claims = EXHIBIT.claims(rows())
    assert [round(claim.mean or 0, 3) for claim in claims] == [0.75, 0.533, 0.4, 0.307, 0.787, 0.543, 2.439]
    assert verdicts(rows()) == ["reproduced"] * 7
    slower = [claim.text for claim in EXHIBIT.claims(rows(INC=0.95)) if not claim.is_met]
    assert slower[:2] == ["communication saved by the ring", "time saved by the ring"]
    faster = [claim.text for claim in EXHIBIT.claims(rows(**{"INC+C": 0.28})) if not claim.is_met]
    assert faster[-1] == "speed-up of the ring with the codec", "a rule has two sides"
    useless = EXHIBIT.claims([row | {"step_s": 1.0} for row in rows()])
    assert [claim.is_met for claim in useless] == [True, *[False] * 6]


def test_speed_ups_of_dead_trainings_count_for_nothing() -> None:
    assert verdicts(rows(accuracy=0.15)) == [*["reproduced"] * 3, *["did not learn"] * 4]
    assert verdicts([row | {"accuracy": 0.15} for row in rows()]) == ["did not learn"] * 7
    assert verdicts(rows()[:4]) == ["too short"] * 7


def test_each_way_is_trained_with_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Training] = []

    def train(training: Training) -> list[Mapping[str, Any]]:
        trained.append(training)
        return [{"step_s": 1.0, "compute_s": 0.1, "accuracy": 0.9}]

    monkeypatch.setattr(figure_12, "train", train)
    perform(EXHIBIT.experiment, Options("cnn", "10mbit", 3), quiet=True)
    assert [each.runs for each in trained] == [
        ("server",),
        ("server:inceptionn:2^-10",),
        ("sync",),
        ("sync:inceptionn:2^-10",),
    ]
    assert {(each.model, each.link, each.max_steps) for each in trained} == {("cnn", "10mbit", 3)}
