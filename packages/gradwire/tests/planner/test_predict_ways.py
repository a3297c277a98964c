"""Plans that are more than an all-reduce of what a codec makes: sharded ones, NICs, scales."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradwire.codecs import parse
from gradwire.errors import SpecError
from gradwire.plan import Plan
from gradwire.planner.candidates import Workload
from gradwire.planner.encodings import WEIGHTS
from gradwire.planner.exchange_times import Family
from gradwire.planner.predict import Prediction, Predictor
from gradwire.timing.environment import CodecCost, CodecPoint, Environment
from gradwire.timing.line import HostCost, Line

WORLD, COUNT, RATE = 4, 1 << 20, 1e8
SHARDED = Plan(parse("quantize:8"), segment_nbytes=1 << 24, exchange="sharded", residual=False)


def point(nbytes: float, seconds: float = 0.0, line_nbytes: float | None = None) -> CodecPoint:
    return CodecPoint(1, nbytes, seconds, seconds, seconds, line_nbytes=line_nbytes)


def place(seconds: float = 0.0, points: dict[str, CodecPoint] | None = None) -> Environment:
    """Return lines of ``RATE`` without latency or headers."""
    known = {"identity": point(4.0), "quantize:8": point(1.0, seconds), WEIGHTS: point(0.5, seconds)}
    known |= points or {}
    costs = {spec: CodecCost(spec, (each,), exact=True) for spec, each in known.items()}
    return Environment(Line(0.0, RATE), costs, header_nbytes=0)


def predict(environment: Environment, plan: Plan, world: int = WORLD, **seconds: float) -> Prediction:
    workload = Workload((COUNT // 4,) * 4, **seconds)  # 4 parameters and 4 ranks agree on 8 floats
    return Predictor(workload, world, Family(environment)).predict(plan)


def test_a_sharded_step_is_its_halves_and_a_share_of_the_update() -> None:
    found = predict(place(), SHARDED, forward_s=0.01, backward_s=0.02, update_s=0.04)
    share = (WORLD - 1) / WORLD
    gradient_s, weights_s = (share * nbytes * COUNT / RATE for nbytes in (1.0, 0.5))
    agreement_s = 2 * share * 4 * 8 / RATE
    assert found.compute_s == pytest.approx(0.03 + 0.04 / WORLD)
    assert found.exchange_s == pytest.approx(gradient_s + weights_s + agreement_s, rel=1e-6)
    assert found.step_s == pytest.approx(found.compute_s + found.exchange_s)
    assert found.cost.wire_nbytes == pytest.approx(share * COUNT * 1.5 + 2 * share * 32)
    assert found.cost.raw_nbytes == pytest.approx(share * COUNT * 8)


def test_a_sharded_step_codes_one_half_of_each() -> None:
    """Of every value, 3 of 4 ranks encode a sum and one its weight; 3 of 4 decode each."""
    found = predict(place(1e-9), SHARDED)
    assert found.cost.encode_s == pytest.approx(COUNT * 1e-9 * (3 + 1) / 4)
    assert found.cost.decode_s == pytest.approx(COUNT * 1e-9 * (3 + 3) / 4)


@pytest.mark.parametrize("world", [2, 5, 24])
def test_no_sharded_step_is_below_its_bound(world: int) -> None:
    environment = replace(place(1e-9), host=HostCost(1e-5, 1e-5, cores=2), line=Line(1e-5, RATE))
    predictor = Predictor(Workload.of_count(COUNT, 0.0, 0.0, 0.01), world, Family(environment))
    assert 0.5 < predictor.least_s(SHARDED) / predictor.predict(SHARDED).step_s <= 1 + 1e-12


def test_without_the_cost_of_weights_a_sharded_plan_is_refused() -> None:
    environment = place()
    costs = {spec: cost for spec, cost in environment.codecs.items() if spec != WEIGHTS}
    with pytest.raises(SpecError, match=f"the costs of {WEIGHTS} were not measured"):
        predict(replace(environment, codecs=costs), SHARDED)


def test_nics_take_bytes_off_the_line_and_not_off_the_host() -> None:
    plan = Plan(offload="truncate:16", segment_nbytes=1 << 24)
    for line_nbytes, carried in ((None, 4.0), (0.5, 0.5)):
        found = predict(place(points={"projected:truncate:16": point(4.0, line_nbytes=line_nbytes)}), plan)
        assert found.exchange_s == pytest.approx(2 * 3 / 4 * carried * COUNT / RATE, rel=1e-6)
        assert found.cost.wire_nbytes == pytest.approx(2 * 3 / 4 * 4 * COUNT)


def test_a_scale_has_its_own_cost() -> None:
    costs = {"errbound:2^-8": point(1.0), "scaled:errbound:2^-8": point(2.0)}
    for scale, nbytes in ((None, 1.0), ("auto", 2.0)):
        plan = Plan(parse("errbound:2^-8"), segment_nbytes=1 << 24, scale=scale)
        found = predict(place(points=costs), plan)
        assert found.exchange_s == pytest.approx(2 * 3 / 4 * nbytes * COUNT / RATE, rel=1e-6)
    del costs["scaled:errbound:2^-8"]
    with pytest.raises(SpecError, match="the costs of scaled:errbound:2\\^-8 were not measured"):
        predict(place(points=costs), plan)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan(parse("bf16"), encode_on="device"), "encode_on='host', got 'device'"),
        (
            Plan(codecs=[{"match": "bias", "codec": "bf16"}]),
            "the planner: expected a plan with one codec and one lane, got per-parameter codecs",
        ),
    ],
)
def test_what_has_no_price_is_refused(plan: Plan, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        predict(place(), plan)
