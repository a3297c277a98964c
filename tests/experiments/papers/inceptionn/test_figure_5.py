from __future__ import annotations

import pytest
import torch

from gradwire.experiments import perform
from gradwire.experiments.papers.inceptionn.figure_5 import EXHIBIT, Options, describe


def rows(**changed: object) -> list[dict[str, object]]:
    row = {"stage": "early", "below": [[2.0**-4, 0.95], [1.0, 1.0]], "kurtosis": 20.0}
    return [row, row | {"stage": "final"} | changed]


def failed(found: list[dict[str, object]]) -> list[str]:
    return [claim.text[:6] for claim in EXHIBIT.claims(found) if not claim.is_met]


def test_verdicts_follow_from_the_distributions() -> None:
    assert failed(rows()) == []
    assert failed(rows(kurtosis=3.1)) == ["kurtos"]
    assert failed(rows(below=[[2.0**-4, 0.5], [1.0, 0.9]])) == ["values", "values"]


def test_a_gradient_is_described() -> None:
    normal = torch.randn(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = describe(normal / 2)
    assert found["kurtosis"] == pytest.approx(3, abs=0.1)
    assert found["std"] == pytest.approx(0.5, rel=0.01)
    assert dict(map(tuple, found["below"]))[1.0] == pytest.approx(0.9545, abs=0.003)


def test_stages_lie_behind_each_other() -> None:
    found = perform(EXHIBIT.experiment, Options("cnn", 2), quiet=True)
    assert [row["stage"] for row in found] == ["early", "middle", "final"]
    assert found[0]["std"] == found[1]["std"], "both after the first epoch of two"
    assert found[2]["std"] != found[1]["std"]
