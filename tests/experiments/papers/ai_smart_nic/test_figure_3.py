from __future__ import annotations

import pytest

from gradwire.experiments import perform
from gradwire.experiments.papers.ai_smart_nic.figure_3 import EXHIBIT, Line, Options, published_order

ORDER = ["B3", "B2", "U3", "B1", "U2", "U1"]


def rows(
    notes: list[str] = ORDER, layerwise_s: float = 1.0, blocking_s: float = 2.0
) -> list[dict[str, object]]:
    return [
        {
            "kind": kind,
            "method": method,
            "layers": 3,
            "notes": notes,
            "seconds": [seconds],
            "predicted_s": 1.0 if method == "layer-wise" else 2.0,
            "predicted_exposed_s": 0.25 if method == "layer-wise" else 0.75,
        }
        for kind in ("line bound", "compute bound")
        for method, seconds in (("layer-wise", layerwise_s), ("blocking", blocking_s))
    ]


def failed(found: list[dict[str, object]]) -> list[int]:
    return [number for number, claim in enumerate(EXHIBIT.claims(found)) if not claim.is_met]


def test_the_order_is_that_of_the_trace() -> None:
    assert published_order(3) == ORDER


def test_verdicts_follow_from_the_order_and_the_times() -> None:
    assert failed(rows()) == []
    assert failed(rows(["B3", "U3", "B2", "U2", "B1", "U1"])) == [0]
    assert failed(rows(ORDER[:-1])) == [0]
    assert failed(rows(layerwise_s=1.2)) == [1, 2]
    assert failed(rows(layerwise_s=0.8)) == [1]


def test_steps_are_taken_over_paced_links() -> None:
    found = perform(EXHIBIT.experiment, Options(3, 64, 1), quiet=True)
    assert found[0]["notes"] == ORDER
    assert found[1]["notes"] == ["B3", "U3", "B2", "U2", "B1", "U1"]
    # Blocking, a layer takes its forward and backward pass, 1.5 times 0.4 of the exchange, and the exchange.
    assert found[1]["predicted_s"] == pytest.approx(3 * 1.6 * Line().all_reduce_s(64, 3))
    assert all(row["seconds"][0] >= 0.9 * row["predicted_s"] for row in found)
