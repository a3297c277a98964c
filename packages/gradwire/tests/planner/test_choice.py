"""A choice: its parts agree with the selection that it comes from, and its record can be read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire.plan import Plan
from gradwire.planner.candidates import Workload
from gradwire.planner.choice import SCHEMA, Choice, scaling
from gradwire.planner.environment import Input
from gradwire.planner.request import PlanRequest
from gradwire.records import read_record
from gradwire.timing.environment import Environment
from support.planner_costs import chosen, make_request

Make = Callable[..., Environment]


@pytest.fixture
def choice(environment: Make) -> Choice:
    workload = Workload.of_count(200_000, forward_s=0.01, backward_s=0.02)
    asked = make_request(workload, ["bf16", "quantize:8"], algorithms=["ring", "star"], largest_error=2.5e-5)
    return chosen(asked, environment(30e6), Input("line", "240 Mbit/s", "told"))


def test_its_parts_are_those_of_the_selection(choice: Choice) -> None:
    assert choice.hosts == 2
    assert choice.plan == choice.prediction.plan == choice.ranked.plan
    assert choice.prediction in choice.ranking
    assert choice.uncompressed in choice.ranking
    assert str(choice.uncompressed.plan.codec) == "identity"
    assert str(choice.plan.codec) in choice.explanation
    steps = [each.step_s for each in choice.ranking]
    assert steps == sorted(steps)


def test_the_record_says_everything_and_is_read_again(choice: Choice, tmp_path: Path) -> None:
    file = tmp_path / "choice.json"
    file.write_text(choice.to_json())
    record = read_record(file, SCHEMA, "choice", "make one")
    assert Plan.from_json(json.dumps(record["plan"])) == choice.plan
    assert record["hosts"] == 2
    assert record["explanation"] == choice.explanation
    assert record["prediction"] == choice.prediction.values()
    assert record["uncompressed"] == choice.uncompressed.values()
    assert record["ranking"] == [each.values() for each in choice.ranked.ordered]
    assert record["considered"] == choice.ranked.considered
    assert record["uncertainty"] == choice.ranked.uncertainty
    assert record["inputs"] == [{"name": "line", "value": "240 Mbit/s", "source": "told"}]
    assert record["codecs"] == [
        {"codec": "identity", "largest_error": 0.0, "guaranteed": True, "admitted": True},
        *(
            {"codec": spec, "largest_error": pytest.approx(2e-5), "guaranteed": False, "admitted": True}
            for spec in ("bf16", "quantize:8")
        ),
    ]
    assert PlanRequest.from_values(record["request"]) == choice.request
    assert (record["scaling"], record["hosts_that_pay"]) == ([], None)
    assert record["machine"]["target"]


def test_its_points_are_in_the_record_and_one_host_has_no_plan(choice: Choice) -> None:
    points = tuple(scaling(choice.request, choice.environment, [1, 2]))
    record = json.loads(replace(choice, scaling=points).to_json())
    assert [(each["hosts"], each["step_s"]) for each in record["scaling"]] == [
        (1, pytest.approx(0.03)),
        (2, choice.prediction.step_s),
    ]
    assert record["scaling"][0]["plan"] is None
    assert Plan.from_json(json.dumps(record["scaling"][1]["plan"])) == choice.plan
    assert record["scaling"][1]["efficiency"] == pytest.approx(0.03 / choice.prediction.step_s)
    assert record["hosts_that_pay"] in (1, 2)
