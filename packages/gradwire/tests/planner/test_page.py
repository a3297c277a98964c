from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gradwire.planner.by_hosts import pays
from gradwire.planner.candidates import Workload
from gradwire.planner.choice import Choice, scaling
from gradwire.planner.environment import Input
from gradwire.planner.explain import name_plan
from gradwire.planner.report import page_of
from gradwire.timing.environment import Environment
from gradwire.units import format_duration
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
    assert html.count("<figure>") == 1


def test_numbers_of_hosts_have_a_table_and_a_plot(choice: Choice) -> None:
    encodings = (choice.plan.encoding,)
    known = {2: choice.prediction}
    points = [*scaling(choice.request, choice.environment, (1, 2, 4), known, encodings=encodings)]
    html = page_of(record_of(replace(choice, scaling=tuple(points))))
    head, one, two, four = (row for row in Page(html).rows if row[0] in ("hosts", "1", "2", "4"))
    assert head[:4] == ["hosts", "DDP", "bf16 hook", "with gradwire"]
    assert (one[4], one[6]) == ("1.00x", "1.00x")
    assert two[3] == format_duration(choice.prediction.step_s)
    assert four[1] == format_duration(points[2].plain_s or 0)
    assert html.count("<figure>") == 2
    assert html.index('id="hosts-caption"') < html.index("<table"), "the gain by hosts is the hero"
    assert f"{pays(points)}." in Page(html).text


def test_a_record_of_an_older_version_has_no_baselines_and_still_a_page(choice: Choice) -> None:
    points = scaling(choice.request, choice.environment, (1, 2), {2: choice.prediction})
    record = record_of(replace(choice, scaling=tuple(points)))
    for row in record["scaling"]:
        del row["ddp_s"], row["bf16_hook_s"]
    page = Page(page_of(record))
    assert ["hosts", "with gradwire", "throughput", "efficiency", "plan"] in page.rows


def test_a_notebook_shows_the_choice_and_the_fastest_plans(choice: Choice) -> None:
    page = Page(choice._repr_html_())
    first, _, _ = choice.explanation.partition(". ")
    assert page.text.index(first) < page.text.index("exposed")
    assert page.rows[1][0] == f"{name_plan(choice.plan)}, chosen"
    assert len(page.rows) == 1 + min(5, len(choice.ranking))


def test_the_same_record_gives_the_same_bytes(choice: Choice) -> None:
    assert page_of(record_of(choice)) == page_of(record_of(choice))
