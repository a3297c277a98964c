from __future__ import annotations

import pytest
import torch

from gradwire_lab.experiments import perform
from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.papers.inceptionn.figure_5 import (
    EXHIBIT,
    STAGES,
    InceptionnFigure5Options,
    describe,
)


def rows(**changed: object) -> list[dict[str, object]]:
    row = {"network": "CNN", "data": "digits", "accuracy": 0.95, "kurtosis": 20.0}
    row |= {"below": [[2.0**-4, 0.95], [1.0, 1.0]]}
    return [row | {"stage": stage} | (changed if stage == "final" else {}) for stage in STAGES]


def failed(found: list[dict[str, object]]) -> list[str]:
    return [claim.text[:6] for claim in EXHIBIT.claims(found) if not claim.is_met]


def test_verdicts_follow_from_the_distributions() -> None:
    assert failed(rows()) == []
    assert failed(rows(kurtosis=3.1)) == ["kurtos"]
    assert failed(rows(below=[[2.0**-4, 0.5], [1.0, 0.9]])) == ["values", "values"]
    assert {claim.verdict for claim in EXHIBIT.claims(rows(accuracy=0.1))} == {Verdict.DID_NOT_LEARN}


def test_a_gradient_is_described() -> None:
    normal = torch.randn(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = describe(normal / 2)
    assert found["kurtosis"] == pytest.approx(3, abs=0.1)
    assert found["std"] == pytest.approx(0.5, rel=0.01)
    assert dict(map(tuple, found["below"]))[1.0] == pytest.approx(0.9545, abs=0.003)


def test_stages_lie_behind_each_other() -> None:
    found = perform(EXHIBIT.experiment, InceptionnFigure5Options("CNN", (1,), 20), quiet=True)
    assert [row["stage"] for row in found] == [*STAGES]
    assert len({row["std"] for row in found}) == 3
    assert len({row["accuracy"] for row in found}) == 1
