from __future__ import annotations

from gradwire_lab.experiments import perform
from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.papers.inceptionn.figure_4 import EXHIBIT
from gradwire_lab.experiments.papers.inceptionn.training import TrainingOptions


def rows(**lost: float) -> list[dict[str, object]]:
    kinds = [("exact", 0), *((what, bits) for what in "gw" for bits in (16, 22, 24))]
    usual = {"g22": 0.01, "g24": 0.03, "w22": 0.3, "w24": 0.8} | lost
    return [
        {
            "network": "CNN",
            "data": "digits",
            "of": of,
            "bits": bits,
            "accuracies": [0.1, 0.95 - usual.get(f"{of}{bits}", 0.0)],
        }
        for of, bits in kinds
    ]


def failed(found: list[dict[str, object]]) -> list[str]:
    return [claim.text for claim in EXHIBIT.claims(found) if not claim.is_met]


def test_verdicts_follow_from_the_accuracies() -> None:
    assert failed(rows()) == []
    assert failed(rows(g16=0.05)) == ["accuracy lost by 16 bits of gradients"]
    assert failed(rows(w24=0.05)) == ["accuracy lost by 24 bits of weights"]
    assert failed(rows(g22=0.5)) == ["accuracy lost by 22 bits of weights, beyond that by gradients"]
    beyond = "accuracy lost by {} bits of weights, beyond that by gradients"
    assert failed(rows(g24=0.8)) == [beyond.format(24)], "two dead ones that agree"
    assert failed(rows(w22=0.02)) == [beyond.format(22)], "a point is no difference"
    dead = [row | {"accuracies": [0.1, 0.1]} for row in rows()]
    assert {claim.verdict for claim in EXHIBIT.claims(dead)} == {Verdict.DID_NOT_LEARN}


def test_each_truncation_is_trained() -> None:
    found = perform(EXHIBIT.experiment, TrainingOptions(("CNN",), (1,), 14), quiet=True)
    assert len(found) == 7
    exact, gradients = found[0]["accuracies"], found[1]["accuracies"]
    assert len(exact) == 1
    assert abs(exact[0] - gradients[0]) < 0.1
