from __future__ import annotations

from gradwire_lab.experiments import perform
from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.papers.inceptionn.figure_13 import EXHIBIT, InceptionnFigure13Options

NETWORK = "HDC, 3 layers, He"


def rows(compressed: list[float], exact: float = 0.9) -> list[dict[str, object]]:
    of = {"network": NETWORK, "data": "digits"}
    return [
        row
        for _seed in range(3)
        for row in (
            {**of, "codec": "exact", "epochs": 2, "accuracies": [0.5, exact]},
            {**of, "codec": "inceptionn:2^-10", "epochs": 4, "accuracies": compressed},
        )
    ]


def verdicts(found: list[dict[str, object]]) -> list[Verdict]:
    return [claim.verdict for claim in EXHIBIT.claims(found)]


def test_verdicts_follow_from_the_accuracies() -> None:
    good, failed, dead = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.DID_NOT_LEARN
    assert verdicts(rows([0.4, 0.886, 0.89, 0.897])) == [good, good]
    assert verdicts(rows([0.4, 0.87, 0.89, 0.894])) == [failed, failed]
    assert verdicts(rows([0.4, 0.886, 0.89, 0.88])) == [failed, good]
    assert verdicts(rows([0.4, 0.886, 0.89, 0.91])) == [failed, good], "a rule has two sides"
    assert verdicts(rows([0.1, 0.1, 0.1, 0.1], exact=0.1)) == [dead, dead], "dead runs agree"


def test_rows_say_how_many_epochs_two_more_are() -> None:
    systems = [claim.system for claim in EXHIBIT.claims(rows([0.4, 0.886, 0.89, 0.897]))]
    assert systems == ["on digits, 4 instead of 2", "on digits, 2"]


def test_the_codec_gets_two_more_epochs() -> None:
    found = perform(
        EXHIBIT.experiment,
        InceptionnFigure13Options(("CNN",), (("digits", 1), ("mnist", 1)), (1,)),
        quiet=True,
    )
    assert [len(row["accuracies"]) for row in found] == [1, 3]
