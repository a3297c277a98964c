from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gradwire import Choice, choose_plan
from gradwire.planner.candidates import Workload
from gradwire.planner.choice import ScalePoint, scaling
from gradwire.planner.report import ranking, report
from gradwire.planner.report import scaling as scaling_report
from gradwire.tables import WIDTH, Table, lines
from gradwire.timing.environment import CodecCost, Environment
from gradwire.timing.line import HostCost
from support.planner_costs import chosen

LONG = "inceptionn:2^-10,bounded"


@pytest.fixture
def choice(environment: Callable[..., Environment]) -> Choice:
    costs = dict(environment().codecs)
    costs[LONG] = CodecCost(LONG, costs["bf16"].points)
    return choose_plan(
        3_000_000,
        12,
        rate="100mbit",
        forward_s=10.0,
        backward_s=20.0,
        codecs=[LONG, "quantize:8", "bf16"],
        algorithms=["ring", "hierarchical:4,star+star"],
        pipelines=(1, 2),
        largest_error=1e-3,
        costs=costs,
        host=HostCost(cores=2),
    )


def test_nothing_is_wider_than_eighty_columns(choice: Choice) -> None:
    points = tuple(scaling(choice.request, choice.environment, [1, 2, 4]))
    for line in lines(*report(replace(choice, scaling=points), top=50)):
        assert len(line) <= WIDTH


def test_the_chosen_plan_is_marked_and_shown_whatever_its_place(choice: Choice) -> None:
    for top in (1, 50):
        table, _ = ranking(choice, top)
        assert isinstance(table, Table)
        assert [row[0] for row in table.rows] == [">", *[""] * (len(table.rows) - 1)]
        assert str(choice.plan.codec) in table.rows[0][1]


def test_every_term_has_a_column(choice: Choice) -> None:
    head = lines(*ranking(choice, 3))[0].split()
    assert {"step", "exposed", "codec", "frames", "wait", "wire"} <= set(head)


def test_the_way_to_a_loss_has_columns(choice: Choice) -> None:
    place = choice.environment
    known = {
        spec: replace(cost, points=tuple(replace(each, lost=0.1) for each in cost.points))
        for spec, cost in place.codecs.items()
    }
    workload = Workload.of_count(3_000_000)
    asked = replace(
        choice.request, model=workload.counts, forward_s=None, backward_s=None, largest_error=None
    )
    found = chosen(asked, replace(place, codecs=known, noise=10.0))
    told = lines(*report(found, 50))
    assert max(map(len, told)) <= WIDTH
    assert {"step", "extra", "to", "loss", "±"} <= set(" ".join(lines(*ranking(found, 3))[:2]).split())
    each = found.prediction
    assert each.extra.share > 0
    assert f"{100 * each.extra.share:.1f} % more steps" in " ".join(" ".join(told).split())


def test_codecs_beyond_the_budget_are_named(choice: Choice) -> None:
    text = "\n".join(lines(*report(choice, 3)))
    assert "above the largest error of 0.001" in text
    assert LONG in text


def told(points: list[ScalePoint]) -> str:
    return " ".join(lines(*scaling_report(points)))


def test_the_last_host_that_pays_is_told() -> None:
    points = [
        ScalePoint(hosts, hosts / speedup, 1.0, None) for hosts, speedup in ((1, 1.0), (2, 1.8), (4, 2.0))
    ]
    text = "The throughput still grows at 4 hosts, with 2.00x that of one host; each additional host adds"
    assert text in told(points)
    assert "adds 0.5 of a host or more from 1 to 2, and less elsewhere" in told(points)
    assert "hosts add less than 0.5 of a host each" in told([points[0], ScalePoint(2, 2.0, 1.0, None)])
    assert "; each additional host adds 0.5 of a host or more." in told(points[:2])
