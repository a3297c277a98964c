from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gradwire.planner.candidates import Workload
from gradwire.planner.choice import Choice, scaling
from gradwire.planner.environment import Input
from gradwire.planner.explain import name_plan
from gradwire.planner.report import page_of
from gradwire.timing.environment import Environment
from support.pages import Page
from support.planner_costs import chosen, make_request

Make = Callable[..., Environment]


@pytest.fixture
def choice(environment: Make) -> Choice:
    workload = Workload.of_count(200_000, forward_s=0.01, backward_s=0.02)
    asked = make_request(workload, ["bf16", "quantize:8"], algorithms=["ring", "star"], largest_error=2.5e-5)
    return chosen(asked, environment(30e6), Input("line", "240 <Mbit/s>", "told"))


def record_of(choice: Choice) -> Any:
    return json.loads(choice.to_json())


def test_the_choice_and_its_reasons_are_first_and_every_plan_is_there(choice: Choice) -> None:
    html = page_of(record_of(choice))
    page = Page(html)
    first, _, others = choice.explanation.partition(". ")
    assert f"Chosen: {first}." in page.text
    assert others in page.text
    assert html.index("Chosen:") < html.index("<table")
    plans = [row[0] for row in page.rows if len(row) > 8][1:]
    names = [name_plan(each.plan) for each in choice.ranked.ordered]
    names[0] = f"\u2713 {name_plan(choice.plan)}, chosen"
    assert len(names) == len(choice.ranking)
    assert plans == names
    assert ["line", "240 <Mbit/s>", "told"] in page.rows
    assert html.count("<svg") == 1


def test_numbers_of_hosts_have_a_table_and_a_plot(choice: Choice) -> None:
    encodings = (choice.plan.encoding,)
    points = scaling(
        choice.request, choice.environment, (1, 2, 4), {2: choice.prediction}, encodings=encodings
    )
    html = page_of(record_of(replace(choice, scaling=tuple(points))))
    rows = [row for row in Page(html).rows if len(row) == 5]
    assert [row[0] for row in rows] == ["hosts", "1", "2", "4"]
    assert rows[1][2] == "1.00x"
    assert html.count("<svg") == 2


def test_the_same_record_gives_the_same_bytes(choice: Choice) -> None:
    assert page_of(record_of(choice)) == page_of(record_of(choice))
