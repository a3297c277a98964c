from __future__ import annotations

import math

import pytest

from gradwire import Plan
from gradwire.auto.decide import Decision, decide
from gradwire.codecs import Codec, Identity, parse
from gradwire.errors import SpecError
from gradwire.planner.inputs.workload import Workload
from gradwire.timing.replay.environment import CodecCost, CodecPoint, Environment
from gradwire.timing.replay.line import Line

WORLD = 4
BUCKETS = Workload((1 << 20,) * 4, forward_s=0.01, backward_s=0.02)
NBYTES = {"identity": 4.0, "bf16": 2.0, "fp8": 1.02, "quantize:4": 0.5}
LOST = {"identity": 0.0, "bf16": 0.002, "fp8": 0.026, "quantize:4": 0.12}


def environment(rate: float) -> Environment:
    costs = {
        spec: CodecCost(spec, (CodecPoint(1, nbytes, 2e-10, 2e-10, 2e-10),), exact=spec == "identity")
        for spec, nbytes in NBYTES.items()
    }
    return Environment(Line(5e-5, rate), costs)


def chosen(rate: float, most: float = 0.2, present: str = "fp8", world: int = WORLD) -> Decision:
    lost: dict[Codec, float] = {parse(spec): share for spec, share in LOST.items()}
    return decide(environment(rate), BUCKETS, world, lost, most, Plan.of(present, residual=False), ["ring"])


def test_a_fast_line_wants_no_compression() -> None:
    decision = chosen(1e12, present="identity")
    assert decision.plan.codec == Identity()
    assert decision.step_s == decision.uncompressed_s == pytest.approx(decision.compute_s, rel=0.1)


def test_a_slow_line_wants_the_codec_whose_bytes_outweigh_its_noise() -> None:
    decision = chosen(1e7)
    assert str(decision.plan.codec) == "quantize:4"
    assert decision.plan.bucket_nbytes is None
    assert not decision.plan.keeps_residual
    assert decision.uncompressed_s > 5 * decision.step_s
    assert "quantize:4 over ring" in decision.reason


def test_what_loses_more_than_the_contract_allows_is_left_out_and_named() -> None:
    decision = chosen(1e7, most=0.1)
    assert str(decision.plan.codec) == "fp8"
    assert "quantize:4 would lose more than 10% of a parameter's gradient" in decision.reason
    assert chosen(1e7, most=1e-4).plan.codec == Identity()


@pytest.mark.parametrize(("share", "codec"), [(0.02, "quantize:4"), (0.16, "fp8")])
def test_noise_counts_against_a_codec_where_its_bytes_save_little(share: float, codec: str) -> None:
    lost: dict[Codec, float] = {parse(spec): each for spec, each in (LOST | {"quantize:4": share}).items()}
    decision = decide(environment(3e8), BUCKETS, 16, lost, 0.2, Plan.of("bf16"), ["ring"])
    assert str(decision.plan.codec) == codec


def test_the_present_plan_stays_unless_another_is_clearly_better() -> None:
    for rate in (1e7, 1e8, 1e9, 1e12):
        decision = chosen(rate)
        again = chosen(rate, present=str(decision.plan.codec))
        assert again.plan.codec == decision.plan.codec


def test_a_codec_that_saves_nothing_any_more_does_not_stay() -> None:
    assert chosen(1e12, present="fp8").plan.codec == Identity()


def test_a_decision_travels_as_json() -> None:
    decision = chosen(1e7)
    assert Decision.from_json(decision.to_json()) == decision
    for text in ("", "[]", "{}", '{"plan": 3}', '{"plan": {}, "step": 1}'):
        with pytest.raises(SpecError):
            Decision.from_json(text)
    assert math.isfinite(decision.step_s)
