from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from gradwire import Plan
from gradwire.autotune.contract import rules_for
from gradwire.autotune.decision import Decision, best_of
from gradwire.codecs import parse
from gradwire.errors import SpecError

PLAN = Plan.of("quantize:8", codecs=rules_for({"bias": parse("bf16")}))
DECISION = Decision(PLAN, 0.5, 1.25, 0.25, "why", extra=0.02, nbytes=1e6, left_out=("ecsq:0.25",))


def test_a_decision_travels_as_json() -> None:
    again = Decision.from_json(DECISION.to_json())
    assert again == DECISION
    assert math.isfinite(again.step_s)
    told = json.loads(DECISION.to_json())
    assert Decision.from_json(json.dumps({k: v for k, v in told.items() if k != "left_out"})).left_out == ()
    wrong = (json.dumps(told | {"left_out": value}) for value in ("bf16", [1], ["nonsense:9"]))
    for text in ("", "[]", "{}", '{"plan": 3}', '{"plan": {}, "step": 1}', *wrong):
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


def told(step_s: float, nbytes: float, extra: float) -> Decision:
    return Decision(PLAN, step_s, 2.0, 0.5, "", extra=extra, nbytes=nbytes)


@pytest.mark.parametrize(
    ("slower", "fewer", "noise", "number"),
    [
        (1.03, 1.0, 0.8, 1),
        (1.03, 1.0, 0.95, 0),
        (1.06, 1.0, 0.8, 0),
        (1.03, 0.9, 0.8, 0),
        (1.03, 1.04, 0.8, 1),
    ],
)
def test_of_plans_that_are_as_fast_and_as_lean_one_with_less_noise_is_better(
    slower: float, fewer: float, noise: float, number: int
) -> None:
    others = [told(1.0, fewer * 100.0, 0.01), told(slower, 100.0, noise * 0.01)]
    assert best_of(others) == others[number]
    assert best_of(others[::-1]) == others[number]


def test_of_equally_fast_plans_the_one_with_fewer_lanes_is_better() -> None:
    plans = [replace(Plan.of("fp8"), lanes=lanes) for lanes in (8, 1, 2)]
    times_s = (1.0, 1.2, 1.04)
    options = [Decision(each, s, 2.0, 0.5, "", nbytes=1.0) for each, s in zip(plans, times_s, strict=True)]
    assert best_of(options).plan.lanes == 2
    assert best_of(options, same=0.25).plan.lanes == 1
    assert best_of(options, same=0.01).plan.lanes == 8


def test_little_noise_does_not_count_and_the_best_of_those_with_less_noise_stays() -> None:
    most, less, least = told(1.0, 100.0, 0.01), told(1.01, 100.0, 0.008), told(1.03, 100.0, 0.007)
    assert best_of([most, less, least]) == less
    little = [told(1.0, 100.0, 0.0012), told(1.01, 100.0, 0.0003)]
    assert best_of(little) == little[0]
