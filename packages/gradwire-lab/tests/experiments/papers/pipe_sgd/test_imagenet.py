from __future__ import annotations

import pytest

from gradwire_lab.experiments.claim import Basis, Verdict
from gradwire_lab.experiments.papers.pipe_sgd.imagenet import ACCURACIES, EXHIBIT, modelled_s


def rows(network: str, **accuracies: float) -> list[dict[str, object]]:
    return [
        {
            "kind": "train",
            "data": "mnist",
            "network": network,
            "run": name,
            "seed": seed,
            "accuracy": accuracies.get(name, 0.95),
        }
        for name in ACCURACIES[network]
        for seed in (0, 1, 2)
    ]


def verdicts(found: list[dict[str, object]]) -> dict[str, Verdict]:
    return {claim.text: claim.verdict for claim in EXHIBIT.claims(found)}


def test_verdicts_follow_from_accuracies() -> None:
    found = verdicts(rows("AlexNet"))
    assert set(found.values()) == {Verdict.REPRODUCED, Verdict.MODELLED}
    for accuracy in (0.94, 0.96):
        worse = verdicts(rows("AlexNet", **{"Pipe-SGD+Q": accuracy}))
        assert [text for text, verdict in worse.items() if verdict is Verdict.NOT_REPRODUCED] == [
            "AlexNet: accuracy of Pipe-SGD+Q, below D-Sync's"
        ]
    claims = EXHIBIT.claims(rows("AlexNet"))
    lost = [claim.published.value for claim in claims[:-2] if claim.published]
    assert lost == pytest.approx([0.0, 0.0042, -0.0013, 0.0014, -0.0001, 0.0051])


def test_modelled_steps_stay_modelled_where_nothing_learned() -> None:
    dead = EXHIBIT.claims(rows("AlexNet", **dict.fromkeys(ACCURACIES["AlexNet"], 0.1)))
    assert {claim.verdict for claim in dead if claim.basis is Basis.MEASURED} == {Verdict.DID_NOT_LEARN}
    assert [claim.basis for claim in dead][-2:] == [Basis.MODELLED] * 2
    resnet = EXHIBIT.claims(rows("ResNet-18"))
    assert [claim.verdict for claim in resnet if claim.basis is Basis.MODELLED] == [
        Verdict.NOT_REPRODUCED
    ] * 2


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


def test_each_published_way_is_trained_with_three_seeds() -> None:
    cells = EXHIBIT.experiment.cells(EXHIBIT.full)
    assert {cell["kind"] for cell in cells} == {"train"}
    for network, published in ACCURACIES.items():
        trained = {(cell["run"], cell["seed"]) for cell in cells if cell["network"] == network}
        assert trained == {(run, seed) for run in published for seed in (0, 1, 2)}
