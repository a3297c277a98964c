from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gradwire.experiments import perform
from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.inceptionn import figure_12
from gradwire.experiments.papers.inceptionn.figure_12 import EXHIBIT, Options
from gradwire.experiments.papers.jobs import Training


def rows(**steps: float) -> list[dict[str, object]]:
    usual = {"WA": 1.1, "WA+C": 0.7, "INC": 0.5, "INC+C": 0.2} | steps
    return [{"run": name, "step_s": seconds, "compute_s": 0.1} for name, seconds in usual.items()]


def test_verdicts_follow_from_the_times() -> None:
    claims = EXHIBIT.claims(rows())
    assert all(claim.is_met for claim in claims)
    assert [round(claim.mean or 0, 4) for claim in claims] == [0.6, 0.5455, 0.4, 0.9, 0.75, 5.5]
    slower = [claim.text for claim in EXHIBIT.claims(rows(INC=1.0)) if not claim.is_met]
    assert slower == ["communication saved by the ring", "time saved by the ring"]
    hidden = EXHIBIT.claims(rows(**{"WA+C": 0.9}))[2]
    assert hidden.verdict is Verdict.EXPLAINED
    assert EXHIBIT.claims(rows(**{"WA+C": 1.05}))[2].verdict is Verdict.NOT_REPRODUCED
    useless = EXHIBIT.claims([row | {"step_s": 1.1} for row in rows()])
    assert not any(claim.is_met for claim in useless)


def test_each_way_is_trained_with_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Training] = []

    def train(training: Training) -> list[Mapping[str, Any]]:
        trained.append(training)
        return [{"step_s": 1.0, "compute_s": 0.1}]

    monkeypatch.setattr(figure_12, "train", train)
    perform(EXHIBIT.experiment, Options("cnn", "10mbit", 3), quiet=True)
    assert [each.runs for each in trained] == [
        ("server",),
        ("server:inceptionn:2^-10",),
        ("sync",),
        ("sync:inceptionn:2^-10",),
    ]
    assert {(each.model, each.link, each.max_steps) for each in trained} == {("cnn", "10mbit", 3)}
