"""A ranking: which plans a request allows among so many hosts, and which of them it chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gradwire.codecs import Identity, parse
from gradwire.planner.candidates import Space, Workload, candidates, fastest_in_lanes, in_lanes, lanes_in
from gradwire.planner.exchange_times import Family
from gradwire.planner.predict import UNCERTAINTY, Predictor, choose, is_exact, rank
from gradwire.planner.request import PlanRequest
from gradwire.timing.environment import Environment
from gradwire.timing.line import HostCost
from support.planner_costs import make_request

Make = Callable[..., Environment]
LOSSY = ("bf16", "quantize:8")


def ask(largest_error: float | None = None) -> PlanRequest:
    workload = Workload.of_count(200_000, backward_s=0.01)
    return make_request(workload, LOSSY, algorithms=["ring", "star"], largest_error=largest_error)


def test_the_budget_admits_fewer_codecs_the_more_ranks_add_up_their_errors(environment: Make) -> None:
    """A lossy codec of these errs by 1e-5 an encoding, so by 3e-5 among 3 ranks and 4e-5 among 4."""
    place, request = environment(), ask(largest_error=3.5e-5)
    for world, admitted in ((3, True), (4, False)):
        found = rank(request, place, world)
        assert [each.admitted for each in found.codecs] == [True, admitted, admitted]
        assert {each.plan.codec for each in found.ranking} <= {
            Identity(),
            *map(parse, LOSSY if admitted else ()),
        }
    assert isinstance(rank(request, place, 4).plan.codec, Identity)


@pytest.mark.parametrize(("rate", "latency_s"), [(1e6, 1e-4), (125e6, 1e-4), (1e10, 1e-4), (25e6, 0.025)])
def test_the_choice_is_among_the_fastest_of_all_plans(
    rate: float, latency_s: float, environment: Make
) -> None:
    """The oracle predicts every plan, of which the search leaves most out."""
    place, request = environment(rate, latency_s), ask()
    predictor = Predictor(request.workload, 3, Family(place))
    space = Space(tuple(map(parse, LOSSY)), ("ring", "star"), lanes=lanes_in(place))
    plans = [*candidates(space, request.workload, 3)]
    every = [predictor.predict(plan) for plan in plans]
    lanes = [predictor.predict(each) for plan in plans for each in in_lanes(plan, space, request.workload)]
    found, fastest_s = rank(request, place, 3), min(each.step_s for each in every)
    in_lanes_found = sum(each.plan.lanes > 1 for each in found.ranking)
    assert len(every) + in_lanes_found <= found.considered <= len(every) + len(lanes)
    for each in lanes:
        assert predictor.least_s(each.plan) <= each.step_s * (1 + 1e-9)
    assert found.prediction in [*every, *lanes]
    assert found.prediction.step_s * (1 - found.uncertainty) <= fastest_s
    assert found.ranking[0].step_s == min(each.step_s for each in [*every, *lanes])
    plain = min(each.step_s for each in [*every, *lanes] if isinstance(each.plan.codec, Identity))
    assert found.uncompressed.step_s == plain


def test_a_codec_gets_lanes_even_if_it_is_slower_in_one_lane_than_no_compression_in_several(
    environment: Make,
) -> None:
    """Small buckets of a distant link: the latency is most of their time, whatever the codec."""
    place, lossy = environment(25e6, 0.025), tuple(map(parse, LOSSY))
    predictor = Predictor(Workload((1 << 16,) * 16, backward_s=0.05), 2, Family(place))
    space = Space(lossy, ("ring",), buckets_nbytes=(4,), whole=False, lanes=(1, 16))
    found = choose(predictor, space)
    plans = [*candidates(space, predictor.workload, 2)]
    several = [each for plan in plans for each in in_lanes(plan, space, predictor.workload)]
    exact_s = min(predictor.predict(each).step_s for each in several if is_exact(each))
    assert all(predictor.predict(plan).step_s > 2 * exact_s for plan in plans)
    assert (str(found.plan.codec), found.plan.lanes) == ("quantize:8", 16)
    assert found.prediction.step_s == min(predictor.predict(each).step_s for each in several)


def test_lanes_that_a_bound_rules_out_are_considered_but_not_predicted(environment: Make) -> None:
    request = make_request(Workload((1 << 18,) * 16, backward_s=0.05), LOSSY, algorithms=["ring"])
    place = environment(25e6, 0.025)
    found = rank(request, place, 2)
    predictor = Predictor(request.workload, 2, Family(place))
    space = Space(tuple(map(parse, LOSSY)), ("ring",), lanes=lanes_in(place))
    plans = [plan for plan in candidates(space, request.workload, 2) if not is_exact(plan)]
    predicted = [each.plan for each in found.ranking if each.plan.lanes == 1 and not is_exact(each.plan)]
    offered = fastest_in_lanes(space, request.workload, plans, predicted)
    ruled_out = [plan for plan in offered if plan not in {each.plan for each in found.ranking}]
    assert found.considered >= len(found.ranking) + len(ruled_out) > len(found.ranking)
    for plan in ruled_out:
        assert predictor.predict(plan).step_s * (1 - found.uncertainty) > found.ranking[0].step_s


def test_repeats_that_disagree_widen_the_uncertainty_and_simplify_the_choice(environment: Make) -> None:
    place, request = environment(30e6), ask()
    quiet = rank(request, place, 3)
    assert quiet.uncertainty == UNCERTAINTY
    assert not isinstance(quiet.plan.codec, Identity)
    noisy = rank(request, replace(place, host=replace(place.host, disagreement=1e3)), 3)
    assert noisy.uncertainty > UNCERTAINTY
    assert isinstance(noisy.plan.codec, Identity), "no gain is sure"


def test_a_family_is_asked_instead_of_computing_again(environment: Make) -> None:
    place, request = environment(), ask()
    family = Family(place)
    assert rank(request, place, 3, family=family) == rank(request, place, 3)
    times = family.among(3)
    assert times is family.among(3)


@pytest.mark.parametrize(
    ("latency_s", "host", "lanes"),
    [(0.025, HostCost(cores=1), 16), (1e-4, HostCost(cores=5), 4), (1e-4, HostCost(cores=1), 1)],
)
def test_cores_limit_the_lanes_unless_the_link_is_distant(
    latency_s: float, host: HostCost, lanes: int, environment: Make
) -> None:
    place = environment(latency_s=latency_s, host=host)
    assert max(lanes_in(place)) == lanes
    assert lanes_in(place, 2) == (1, 2)[:lanes]


def test_distant_hosts_get_lanes_and_near_ones_only_for_a_gain(environment: Make) -> None:
    request = make_request(Workload((1 << 18,) * 16, backward_s=0.05), LOSSY, algorithms=["ring"])
    place = environment(25e6, 0.025)
    found, one = rank(request, place, 2), rank(replace(request, most_lanes=1), place, 2)
    assert found.plan.lanes > 1
    assert one.plan.lanes == 1
    assert found.prediction.step_s < 0.92 * one.prediction.step_s
    assert rank(request, environment(), 2).plan.lanes == 1, "the link is the limit"


def test_of_one_encoding_and_identity_only_their_plans_are_ranked(environment: Make) -> None:
    place, request = environment(), ask()
    found = rank(request, place, 3, encodings=(parse("bf16"),))
    assert {str(each.codec) for each in found.codecs} == {"bf16"}
    assert {str(each.plan.codec) for each in found.ranking} == {"identity", "bf16"}
