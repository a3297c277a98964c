from __future__ import annotations

from collections.abc import Callable

import pytest

from gradwire.planner.candidates import Workload
from gradwire.planner.choice import (
    ScalePoint,
    hosts_that_pay,
    paying_ranges,
    scaling,
    worlds_around,
)
from gradwire.planner.predict import rank
from gradwire.planner.request import PlanRequest
from gradwire.timing.environment import Environment
from support.planner_costs import make_request

Make = Callable[..., Environment]


def ask(**seconds: float) -> PlanRequest:
    return make_request(Workload.of_count(200_000, **seconds), ["bf16"], algorithms=["ring", "star"])


def test_each_point_is_the_best_plan_among_so_many_hosts(environment: Make) -> None:
    asked, place = ask(forward_s=0.05), environment()
    points = list(scaling(asked, place, [1, 2, 5]))
    assert [point.hosts for point in points] == [1, 2, 5]
    assert points[0].efficiency == points[0].speedup == 1.0
    for point in points[1:]:
        assert point.prediction == rank(asked, place, point.hosts).prediction
        assert point.step_s == 0.05 + point.prediction.exposed_s
        assert point.speedup == pytest.approx(point.hosts * point.efficiency)
        assert point.throughput == pytest.approx(point.hosts / point.step_s)


def test_on_a_line_that_is_fast_enough_all_hosts_pay(environment: Make) -> None:
    points = list(scaling(ask(forward_s=1.0), environment(1e10, 0.0), [1, 2, 4, 8]))
    assert points[-1].efficiency > 0.95
    assert hosts_that_pay(points) == 8


def test_without_computation_there_is_nothing_to_scale(environment: Make) -> None:
    assert list(scaling(ask(), environment(), [1, 2])) == []


def test_hosts_pay_while_each_adds_half_a_host() -> None:
    def points(*speedups: tuple[int, float]) -> list[ScalePoint]:
        return [ScalePoint(hosts, hosts / speedup, 1.0, None) for hosts, speedup in speedups]

    assert hosts_that_pay(points((1, 1.0), (2, 1.5), (4, 2.4), (8, 2.6))) == 2
    assert hosts_that_pay(points((1, 1.0), (2, 1.4), (4, 2.8))) == 1
    assert paying_ranges(points((1, 1.0), (2, 1.4), (4, 2.8), (8, 6.0), (16, 6.0))) == [(2, 8)]
    assert hosts_that_pay(points((1, 1.0), (2, 1.4), (4, 1.5))) == 1
    assert hosts_that_pay(points((1, 1.0), (2, 1.4)), least_gain=0.3) == 2


def test_the_hosts_that_are_asked_for_are_among_the_powers_of_two() -> None:
    assert worlds_around(6, 16) == [1, 2, 4, 6, 8, 16]
    assert worlds_around(100, 64) == [1, 2, 4, 8, 16, 32, 64, 100]


def test_a_choice_that_is_made_already_is_the_point_of_its_hosts(environment: Make) -> None:
    asked, place = ask(forward_s=0.05), environment()
    told = rank(asked, place, 2).prediction
    assert [point.prediction for point in scaling(asked, place, [1, 3], {3: told})] == [None, told]


def test_with_the_encoding_of_a_choice_its_point_is_the_choice(environment: Make) -> None:
    asked, place = ask(forward_s=0.05), environment()
    chosen = rank(asked, place, 3)
    (point,) = scaling(asked, place, [3], encodings=(chosen.plan.encoding,))
    assert point.prediction == chosen.prediction
