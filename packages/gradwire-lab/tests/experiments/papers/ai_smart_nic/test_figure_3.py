from __future__ import annotations

from typing import Any

from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.papers.ai_smart_nic.figure_3 import EXHIBIT, published_order

ORDER = ["B3", "B2", "U3", "B1", "U2", "U1"]


def rows(notes: list[str] = ORDER, exposed_s: float = 0.3, accuracy: float = 0.95) -> list[dict[str, Any]]:
    return [
        {
            "hosts": 3,
            "rate": "200mbit",
            "layers": 3,
            "width": 256,
            "batch": batch,
            "method": method,
            "codec": "identity",
            "data": "digits",
            "notes": notes,
            "exposed_s": [exposed_s if method == "layer-wise" else 1.0] * 3,
            "accuracies": [accuracy] * 3,
        }
        for batch in (448, 1792)
        for method in ("layer-wise", "naive")
    ]


def verdicts(found: list[dict[str, Any]]) -> list[Verdict]:
    return [claim.verdict for claim in EXHIBIT.claims(found)]


def test_the_order_is_that_of_the_trace() -> None:
    assert published_order(3) == ORDER


def test_verdicts_follow_from_the_order_the_times_and_the_accuracies() -> None:
    good, bad, dead = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.DID_NOT_LEARN
    assert verdicts(rows()) == [Verdict.ARITHMETIC, good], "no run changes the order of the program's calls"
    assert verdicts(rows(["B3", "U3", "B2", "U2", "B1", "U1"])) == [bad, good]
    assert verdicts(rows(ORDER[:-1])) == [bad, good]
    assert verdicts(rows(exposed_s=0.5)) == [Verdict.ARITHMETIC, bad]
    assert verdicts(rows(accuracy=0.1)) == [dead, dead]


def test_cells_are_of_one_network_and_train_the_model_of_section_v_b() -> None:
    for full in (False, True):
        cells = EXHIBIT.experiment.cells(EXHIBIT.options(full))
        assert len({(cell["hosts"], cell["rate"]) for cell in cells}) == 1
        assert {cell["method"] for cell in cells} == {"layer-wise", "naive"}
