from __future__ import annotations

import pytest

from gradwire import Plan
from gradwire.autotune.estimate import limit_of
from gradwire.costs import ExchangeCost
from gradwire.planner.predict import Prediction
from gradwire.timing.line import Line

LINE = Line(1e-5, 1e6)


def prediction(compute_s: float, exposed_s: float, **cost: float) -> Prediction:
    return Prediction(Plan(), compute_s, exposed_s, ExchangeCost(**cost), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("compute_s", "exposed_s", "cost", "gather_s", "wanted"),
    [
        (3.0, 1.0, {"wait_s": 2.0}, 0.0, "computation 75 %"),
        (1.0, 3.0, {"wait_s": 3.0, "encode_s": 1.0}, 0.0, "line 56 %"),
        (1.0, 3.0, {"wait_s": 1.0, "encode_s": 2.0, "handling_s": 1.0}, 0.0, "CPU 56 %"),
        (1.0, 0.0, {"wait_s": 1.0}, 3.0, "line 75 %"),
        (1.0, 0.0, {}, 0.0, "computation 100 %"),
    ],
)
def test_the_largest_part_of_a_step_limits_it(
    compute_s: float, exposed_s: float, cost: dict[str, float], gather_s: float, wanted: str
) -> None:
    assert str(limit_of(prediction(compute_s, exposed_s, **cost), LINE, gather_s, 1)) == wanted


def test_waiting_for_shared_cores_is_not_waiting_for_the_line() -> None:
    found = prediction(1.0, 4.0, wait_s=3.0, encode_s=1.0, wire_nbytes=500_000)
    assert limit_of(found, LINE, 0.0, 1).name == "line"
    assert limit_of(found, LINE, 0.0, 4).name == "CPU"


def test_nothing_at_all_is_computation() -> None:
    assert str(limit_of(prediction(0.0, 0.0), LINE, 0.0, 1)) == "computation 100 %"
