from __future__ import annotations

import math

import pytest

from gradwire import Plan
from gradwire.auto.contract import rules_for
from gradwire.auto.decision import Decision, best_of
from gradwire.codecs import parse
from gradwire.errors import SpecError

PLAN = Plan.of("quantize:8", codecs=rules_for({"bias": parse("bf16")}))
DECISION = Decision(PLAN, 0.5, 1.25, 0.25, "why", extra=0.02, nbytes=1e6)


def test_a_decision_travels_as_json() -> None:
    again = Decision.from_json(DECISION.to_json())
    assert again == DECISION
    assert math.isfinite(again.step_s)
    for text in ("", "[]", "{}", '{"plan": 3}', '{"plan": {}, "step": 1}'):
        with pytest.raises(SpecError):
            Decision.from_json(text)


def test_extra_steps_are_part_of_the_time_to_a_loss() -> None:
    assert math.isclose(DECISION.to_loss_s, 0.51)
    assert DECISION.in_short == "quantize:8 and others over ring"
    assert Decision(Plan.of("bf16"), 1.0, 1.0, 1.0, "").in_short == "bf16 over ring"


@pytest.mark.parametrize(("slower", "number"), [(1.04, 1), (1.06, 0)])
def test_the_fastest_is_best_unless_another_is_as_fast_with_fewer_bytes(slower: float, number: int) -> None:
    others = [Decision(PLAN, 1.0, 2.0, 0.5, "", nbytes=2.0), Decision(PLAN, slower, 2.0, 0.5, "", nbytes=1.0)]
    assert best_of(others) == others[number]
    assert best_of(others[::-1]) == others[number]


@pytest.mark.parametrize(
    ("slower", "fewer", "noise", "number"),
    [
        (1.04, 1.0, 0.8, 1),
        (1.04, 1.0, 0.95, 0),
        (1.06, 1.0, 0.8, 0),
        (1.04, 0.9, 0.8, 0),
        (1.04, 1.04, 0.8, 1),
    ],
)
def test_of_plans_that_are_as_fast_and_as_lean_the_one_with_less_noise_is_best(
    slower: float, fewer: float, noise: float, number: int
) -> None:
    others = [
        Decision(PLAN, 1.0, 2.0, 0.5, "", extra=0.01, nbytes=fewer * 100.0),
        Decision(PLAN, slower, 2.0, 0.5, "", extra=noise * 0.01, nbytes=100.0),
    ]
    assert best_of(others) == others[number]
    assert best_of(others[::-1]) == others[number]
