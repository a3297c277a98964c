from __future__ import annotations

import math
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.codecs import parse
from gradwire.planner.candidates import Space, Workload, candidates
from gradwire.planner.exchange_times import Family
from gradwire.planner.predict import UNCERTAINTY, Predictor, Ranking, choose, is_exact
from gradwire.timing.environment import CodecCost, CodecPoint, Environment
from gradwire.timing.line import HostCost, Line

Make = Callable[..., Environment]
CODECS = ("bf16", "bfp:7x16", "quantize:8")
SMALL = 400_000


def select(
    environment: Environment,
    codecs: tuple[str, ...] = CODECS,
    world: int = 4,
    workload: Workload | None = None,
    **more: object,
) -> Ranking:
    predictor = Predictor(workload or Workload.of_count(SMALL), world, Family(environment))
    return choose(predictor, Space(tuple(map(parse, codecs)), **more))  # type: ignore[arg-type]


def test_on_an_infinitely_fast_line_nothing_is_compressed(environment: Make) -> None:
    found = select(environment(math.inf, 0.0))
    assert str(found.plan.codec) == "identity"
    assert found.prediction is found.uncompressed


def test_on_a_slow_line_the_highest_ratio_wins(environment: Make) -> None:
    assert str(select(environment(1.25e6)).plan.codec) == "quantize:8"
    assert str(select(environment(1.25e6), ("bf16", "bfp:7x16")).plan.codec) == "bfp:7x16"
    assert str(select(environment(1.25e6), ("bf16",)).plan.codec) == "bf16"
    assert str(select(environment(1.25e6), ()).plan.codec) == "identity"


def test_a_codec_that_gains_less_than_the_uncertainty_is_left_out() -> None:
    def environment(nbytes: float) -> Environment:
        def cost(spec: str, nbytes: float) -> CodecCost:
            return CodecCost(spec, (CodecPoint(1, nbytes, 0.0, 0.0, 0.0),))

        return Environment(
            Line(0.0, 1e7), {"identity": cost("identity", 4.0), "bf16": cost("bf16", nbytes)}, header_nbytes=0
        )

    assert str(select(environment(3.9), ("bf16",)).plan.codec) == "identity"
    assert str(select(environment(3.8), ("bf16",)).plan.codec) == "bf16"


def test_the_simpler_algorithm_wins_a_tie(environment: Make) -> None:
    place = environment(latency_s=0.0)
    assert select(place, world=2).plan.algorithm == "ring"
    assert select(place, world=2, algorithms=("butterfly", "ring")).plan.algorithm == "butterfly"


def test_a_longer_pipeline_is_chosen_only_if_it_is_offered_and_pays(environment: Make) -> None:
    busy = Workload.of_count(SMALL, forward_s=0.02)
    assert select(environment(), workload=busy).plan.pipeline == 1
    assert select(environment(), workload=busy, pipelines=(1, 2)).plan.pipeline == 2
    idle = Workload.of_count(SMALL)
    assert select(environment(), workload=idle, pipelines=(1, 2)).plan.pipeline == 1


def test_buckets_are_chosen_where_backward_hides_them(environment: Make) -> None:
    workload = Workload.of_count(4_000_000, 0.1, 0.3)
    assert select(environment(), ("quantize:8",), workload=workload).plan.bucket_nbytes is not None


@settings(max_examples=12)
@given(
    st.sampled_from([1e6, 2e7, 1e8, 5e8, 1e10, math.inf]),
    st.sampled_from([0.0, 1e-5, 1e-3]),
    st.sampled_from([2, 3, 4, 6]),
    st.sampled_from([1, 4]),
    st.sampled_from([(0.0, 0.0), (0.005, 0.01)]),
)
def test_the_choice_is_that_of_an_exhaustive_search(
    rate: float, latency_s: float, world: int, shared: int, seconds: tuple[float, float]
) -> None:
    costs = {
        spec: CodecCost(spec, (CodecPoint(1, nbytes, each_s, each_s, each_s),), 1e-5)
        for spec, nbytes, each_s in (("identity", 4.0, 1e-9), ("bf16", 2.0, 2e-9), ("quantize:8", 1.0, 3e-9))
    }
    host = HostCost(1e-4, 1e-4, cores=2, ranks_per_machine=shared)
    family = Family(Environment(Line(latency_s, rate), costs, host))
    predictor = Predictor(Workload.of_count(600_000, *seconds), world, family)
    space = Space(tuple(map(parse, costs)), pipelines=(1, 2), segments_nbytes=(1 << 17, 1 << 20))
    found = choose(predictor, space)
    every = [predictor.predict(plan) for plan in candidates(space, predictor.workload, world)]
    fastest_s = min(each.step_s for each in every)
    assert found.considered == len(every)
    assert found.ranking[0].step_s == fastest_s
    assert found.prediction.step_s * (1 - UNCERTAINTY) <= fastest_s
    ties = {each.plan for each in every if each.step_s * (1 - UNCERTAINTY) <= fastest_s}
    assert ties <= {each.plan for each in found.ranking}
    exact = [each.step_s for each in every if str(each.plan.codec) == "identity"]
    assert (str(found.plan.codec) == "identity") == (min(exact) * (1 - UNCERTAINTY) <= fastest_s)


def test_a_faster_line_never_makes_the_fastest_step_longer(environment: Make) -> None:
    steps = [select(environment(rate)).ranking[0].step_s for rate in (1e6, 1e7, 1e8, 1e9, 1e10)]
    assert steps == sorted(steps, reverse=True)


def test_noise_of_the_calibration_makes_no_slower_plan_of_the_same_kind_a_tie(environment: Make) -> None:
    place = environment(1.25e6, 1e-4)
    predictor = Predictor(Workload.of_count(SMALL), 4, Family(place))
    for codecs in ((), ("bf16", "quantize:8")):
        space = Space(tuple(map(parse, codecs)), algorithms=("star", "backend", "butterfly", "ring"))
        found = choose(predictor, space, uncertainty=0.5)
        assert found.ordered[0] is found.prediction
        assert sorted(map(id, found.ordered)) == sorted(map(id, found.ranking))
        same = [each.step_s for each in found.ranking if is_exact(each.plan) == is_exact(found.plan)]
        assert found.prediction.step_s * (1 - UNCERTAINTY) <= min(same) < 0.7 * max(same)


def test_among_equals_the_largest_segment_is_taken(environment: Make) -> None:
    place = environment(1.25e6, 0.0, host=HostCost())
    found = select(place, ("quantize:8",), 2, Workload.of_count(8_000_000), algorithms=("ring",))
    steps = {each.plan.segment_nbytes: each.step_s for each in found.ranking}
    assert max(steps.values()) * (1 - UNCERTAINTY) < min(steps.values())
    assert found.plan.segment_nbytes == max(steps) == 1 << 22
