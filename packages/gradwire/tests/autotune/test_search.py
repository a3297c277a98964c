from __future__ import annotations

from collections import Counter

import pytest

from gradwire import Plan
from gradwire.autotune.costs import at_once
from gradwire.autotune.decide import predict, search
from gradwire.autotune.settings import DEFAULT
from gradwire.codecs import parse
from gradwire.planner.candidates import Space, Workload
from gradwire.planner.exchange_times import QUICK, Family
from gradwire.planner.predict import Prediction, Predictor, choose, is_exact
from gradwire.timing.environment import CodecCost, CodecPoint, Environment
from gradwire.timing.line import Line

NBYTES = {"identity": 4.0, "bf16": 2.0, "fp8": 1.02, "quantize:4": 0.5}
CODECS = tuple(map(parse, NBYTES))
ALGORITHMS = ("backend", "ring", "pairwise", "butterfly", "tree", "star")
COUNTS = (1 << 20, 3 << 20, 5 << 20)


def predictor(rate: float, world: int = 4, usual: bool = False) -> Predictor:
    costs = {
        spec: CodecCost(spec, (CodecPoint(1, nbytes, 2e-10, 2e-10, 2e-10),), exact=spec == "identity")
        for spec, nbytes in NBYTES.items()
    }
    environment = Environment(Line(5e-5, rate), costs)
    family = Family(environment) if usual else Family(environment, QUICK)
    return Predictor(Workload(COUNTS, forward_s=0.01, backward_s=0.02), world, family)


def space() -> Space:
    return Space(CODECS, ALGORITHMS, buckets_nbytes=(4,), whole=False)


def searched(rate: float, present: str = "fp8", world: int = 4) -> list[Prediction]:
    work = search(
        predictor(rate, world), space(), Plan.of(present), 0.1, DEFAULT, lambda each: each.to_loss_s
    )
    return at_once(work)


@pytest.mark.parametrize("rate", [1e7, 1e8, 1e9, 1e11])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_few_predictions_find_a_plan_as_fast_as_all_of_them(rate: float, world: int) -> None:
    found, exact = searched(rate, world=world), predictor(rate, world, usual=True)
    best = choose(exact, space())
    assert exact.predict(found[0].plan).to_loss_s <= 1.05 * best.ranking[0].to_loss_s
    uncompressed = next(each.plan for each in found if is_exact(each.plan))
    assert exact.predict(uncompressed).step_s <= 1.05 * best.uncompressed.step_s


def test_of_each_codec_the_most_promising_algorithms_are_predicted() -> None:
    found = searched(1e8)
    exact = {each.plan.algorithm for each in found if is_exact(each.plan)}
    assert exact == {*ALGORITHMS}
    ways = {(str(each.plan.codec), each.plan.algorithm) for each in found}
    counts = Counter(codec for codec, _ in ways)
    assert max(counts[codec] for codec in ("fp8", "quantize:4")) <= DEFAULT.most_algorithms + 1
    assert found == sorted(found, key=lambda each: each.to_loss_s)


def test_codecs_that_are_surely_slower_are_not_predicted_but_the_present_plan_is() -> None:
    rate = 1e7
    assert "bf16" not in {str(each.plan.codec) for each in searched(rate)}
    again = {(str(each.plan.codec), each.plan.algorithm) for each in searched(rate, present="bf16")}
    assert ("bf16", "ring") in again


def test_a_prediction_in_pieces_is_the_prediction() -> None:
    plan = Plan.of("fp8", segment_nbytes=1 << 18, bucket_nbytes=4)
    pieces, own = predictor(1e8), predictor(1e8)
    work = predict(pieces, plan)
    count = sum(1 for _ in iter(lambda: next(work, work), work))
    assert count > 2 * len(COUNTS), "several pieces for each size of bucket"
    assert at_once(predict(pieces, plan)) == own.predict(plan)
