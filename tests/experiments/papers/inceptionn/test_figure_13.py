from __future__ import annotations

from gradwire.experiments import perform
from gradwire.experiments.papers.inceptionn.figure_13 import EXHIBIT, Options


def rows(compressed: list[float]) -> list[dict[str, object]]:
    return [
        {"codec": "exact", "epochs": 2, "accuracies": [0.5, 0.9]},
        {"codec": "inceptionn:2^-10", "epochs": 4, "accuracies": compressed},
    ]


def test_verdicts_follow_from_the_accuracies() -> None:
    assert [claim.is_met for claim in EXHIBIT.claims(rows([0.4, 0.885, 0.89, 0.897]))] == [True, True]
    assert [claim.is_met for claim in EXHIBIT.claims(rows([0.4, 0.87, 0.89, 0.894]))] == [False, False]
    assert [claim.is_met for claim in EXHIBIT.claims(rows([0.4, 0.885, 0.89, 0.88]))] == [False, True]


def test_the_codec_gets_two_more_epochs() -> None:
    found = perform(EXHIBIT.experiment, Options("cnn", 1, (1,)), quiet=True)
    assert [len(row["accuracies"]) for row in found] == [1, 3]
