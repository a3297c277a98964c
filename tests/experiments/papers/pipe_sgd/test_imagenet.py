from __future__ import annotations

import pytest

from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.pipe_sgd.imagenet import ACCURACIES, EXHIBIT, Options, measure, modelled_s

STEPS = {"PS-Sync": 5.0, "D-Sync": 2.2}


def rows(network: str, **changed: dict[str, float]) -> list[dict[str, object]]:
    return [
        {
            "network": network,
            "run": name,
            "accuracy": 0.95,
            "step_s": STEPS.get(name, 1.0),
            **changed.get(name, {}),
        }
        for name in ACCURACIES[network]
    ]


def failed(found: list[dict[str, object]]) -> list[str]:
    return [claim.text for claim in EXHIBIT.claims(found) if not claim.is_met]


def test_verdicts_follow_from_accuracies_and_times() -> None:
    assert failed(rows("AlexNet")) == failed(rows("ResNet-18")) == []
    worse = rows("AlexNet", **{"Pipe-SGD+Q": {"accuracy": 0.93}})
    assert failed(worse) == ["AlexNet: accuracy of Pipe-SGD+Q, below D-Sync's"]
    slower = rows("ResNet-18", **{"Pipe-SGD+T": {"step_s": 1.5}})
    assert failed(slower) == [
        "ResNet-18: speed-up of Pipe-SGD+T over D-Sync",
        "ResNet-18: speed-up of Pipe-SGD+T over PS-Sync",
    ]
    claims = EXHIBIT.claims(rows("AlexNet"))
    assert [claim.verdict for claim in claims[-2:]] == [Verdict.MODELLED] * 2
    lost = [claim.published.value for claim in claims[:-2] if claim.published]
    assert lost == pytest.approx([0.0, 0.0042, -0.0013, 0.0014, -0.0001, 0.0051])


def test_alexnet_s_steps_are_those_of_the_published_cluster() -> None:
    # Of 148.71 s for 100 exchanges of six times 233 MB, the ring takes one and a half; the rest computes.
    ring_s, rest_s = 1.4871 * 1.5 / 6, (3.13 + 16.22 + 5.68 + 13.67) / 100
    assert modelled_s("AlexNet", "PS-Sync") == pytest.approx(1.4871 + rest_s)
    assert modelled_s("AlexNet", "D-Sync") == pytest.approx(ring_s + rest_s)
    assert modelled_s("AlexNet", "D-Sync+Q") == pytest.approx(ring_s / 4 + rest_s)
    assert modelled_s("AlexNet", "Pipe-SGD+T") == pytest.approx(max(ring_s / 2, rest_s))
    assert modelled_s("ResNet-18", "D-Sync") - modelled_s("ResNet-18", "Pipe-SGD+T") == pytest.approx(
        ring_s * 46.8 / 233
    )


def test_a_network_is_trained_by_two_ranks() -> None:
    cells = EXHIBIT.experiment.cells(Options(("ResNet-18",), (2,), (0,)))
    assert [cell["run"] for cell in cells] == [*ACCURACIES["ResNet-18"]]
    (cell,) = (cell for cell in cells if cell["run"] == "D-Sync+T")
    assert measure(EXHIBIT.quick, cell)["accuracy"] > 0.2, "chance is 0.1"
