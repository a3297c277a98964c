from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from gradwire.codecs import parse
from gradwire.plan import Plan
from gradwire.planner.candidates import LOCAL_UPDATES, Workload
from gradwire.planner.exchange_times import Family
from gradwire.planner.predict import Prediction, Predictor
from gradwire.timing.environment import Environment
from gradwire.timing.line import HostCost
from gradwire.timing.replay import replay

Make = Callable[..., Environment]
COUNT = 1_000_000
PLANS = [
    Plan(parse(codec), algorithm, 1 << 20, pipeline, bucket_nbytes)
    for codec in ("identity", "quantize:8")
    for algorithm in ("ring", "star")
    for pipeline, bucket_nbytes in ((1, None), (1, 1 << 20), (2, None))
]


def predict(environment: Environment, plan: Plan, **seconds: float) -> Prediction:
    return Predictor(Workload.of_count(COUNT, **seconds), 4, Family(environment)).predict(plan)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_the_terms_add_up(environment: Make, plan: Plan) -> None:
    found = predict(environment(), plan, forward_s=0.01, backward_s=0.02, update_s=0.003)
    parts_s = found.cost.encode_s + found.cost.decode_s + found.cost.handling_s + found.cost.wait_s
    compute_s = 0.033 + (LOCAL_UPDATES * 0.003 if plan.pipeline > 1 else 0)  # an eager pipeline's
    assert found.step_s == pytest.approx(compute_s + found.exposed_s)
    assert found.exchange_s == pytest.approx(parts_s)
    assert found.hidden_s + found.exposed_s == pytest.approx(found.exchange_s)
    assert found.efficiency == pytest.approx(compute_s / found.step_s)
    assert found.ratio == pytest.approx(found.cost.raw_nbytes / found.cost.wire_nbytes)
    assert json.loads(json.dumps(found.values()))["step_s"] == found.step_s


def test_a_single_bucket_hides_nothing(environment: Make) -> None:
    place = environment()
    exchange_s = replay("ring", 4, COUNT, 1 << 20, "identity", place).total_s
    found = predict(place, Plan(segment_nbytes=1 << 20), backward_s=1.0)
    assert found.exposed_s == pytest.approx(exchange_s)
    assert found.step_s == pytest.approx(1.0 + exchange_s)


def test_with_much_backward_only_the_last_bucket_shows(environment: Make) -> None:
    place = environment()
    plan = Plan(segment_nbytes=1 << 20, bucket_nbytes=1 << 20)
    first = COUNT % (1 << 18)  # the pieces of 1 MiB begin at the front: the rest is the end of the model
    last_s = replay("ring", 4, 1 << 18, 1 << 20, "identity", place).total_s
    found = predict(place, plan, backward_s=10.0)
    assert first > 0
    assert found.buckets == 4
    assert found.exposed_s == pytest.approx(last_s)


def test_without_backward_buckets_cost_and_hide_nothing(environment: Make) -> None:
    one = predict(environment(), Plan(segment_nbytes=1 << 20))
    many = predict(environment(), Plan(segment_nbytes=1 << 20, bucket_nbytes=1 << 20))
    assert many.exposed_s == pytest.approx(many.exchange_s)
    assert many.step_s > one.step_s


@pytest.mark.parametrize("pipeline", [2, 3])
@pytest.mark.parametrize("compute_s", [0.0, 0.01, 5.0])
def test_in_a_pipeline_the_slower_of_two_decides(environment: Make, pipeline: int, compute_s: float) -> None:
    place = environment()
    exchange_s = replay("ring", 4, COUNT, 1 << 20, "identity", place).total_s
    found = predict(place, Plan(segment_nbytes=1 << 20, pipeline=pipeline), forward_s=compute_s)
    assert found.step_s == pytest.approx(max(compute_s, exchange_s))


@pytest.mark.parametrize("compute_s", [0.0, 0.01, 5.0])
def test_buckets_in_a_pipeline_are_equation_6_with_the_whole_backward_pass(
    environment: Make, compute_s: float
) -> None:
    place, plan = environment(), Plan(segment_nbytes=1 << 20, pipeline=2, bucket_nbytes=1 << 20)
    counts = [COUNT % (1 << 18), *[1 << 18] * (COUNT >> 18)]
    exchange_s = sum(replay("ring", 4, count, 1 << 20, "identity", place).total_s for count in counts)
    found = predict(place, plan, forward_s=compute_s / 4, backward_s=compute_s * 3 / 4)
    assert found.buckets == len(counts)
    assert found.step_s == pytest.approx(max(compute_s, exchange_s))


def test_on_shared_cores_hidden_work_takes_its_time_from_computation(environment: Make) -> None:
    plan = Plan(parse("quantize:8"), segment_nbytes=1 << 20, pipeline=2)
    host = HostCost(send_s=1e-3, receive_s=1e-3, cores=2)
    alone = predict(environment(host=host), plan, forward_s=5.0)
    shared = predict(environment(host=replace(host, ranks_per_machine=4)), plan, forward_s=5.0)
    assert alone.exposed_s == 0
    work_s = 4 * (shared.cost.encode_s + shared.cost.decode_s + shared.cost.handling_s) / 2
    assert shared.exposed_s == pytest.approx(work_s, rel=0.05)


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("shared", [1, 4])
def test_no_step_is_below_its_bound(environment: Make, plan: Plan, shared: int) -> None:
    host = HostCost(send_s=1e-4, receive_s=1e-4, cores=2, ranks_per_machine=shared)
    predictor = Predictor(Workload.of_count(COUNT, 0.01, 0.02), 4, Family(environment(host=host)))
    assert predictor.least_s(plan) <= predictor.predict(plan).step_s * (1 + 1e-12)
