from __future__ import annotations

from dataclasses import replace

import pytest

from gradwire.codecs import parse
from gradwire.errors import SpecError
from gradwire.plan import Plan
from gradwire.planner.loss import CALIBRATION, Extra, StepsToLoss, added_noise
from gradwire.timing.environment import CodecCost, CodecPoint

POINT = CodecPoint(1, 1.0, 0.0, 0.0, 0.0, lost=0.2)
STEPS = StepsToLoss({"quantize:4": CodecCost("quantize:4", (POINT,))}, noise=3.0)
LOSSY = Plan(parse("quantize:4"), residual=False)


def test_exact_gradients_cost_no_steps() -> None:
    assert STEPS.extra(Plan(), 4) == Extra()


def test_steps_grow_with_the_noise_and_with_staleness() -> None:
    added = added_noise("ring", 4, 3.0, lambda _: 0.2) ** CALIBRATION.power
    found = STEPS.extra(LOSSY, 4)
    assert found.share == pytest.approx(CALIBRATION.noise.factor * added)
    assert found.deviation == pytest.approx(CALIBRATION.noise.deviation * added)
    stale = STEPS.extra(Plan(pipeline=3), 4)
    assert stale.share == pytest.approx(2 * CALIBRATION.stale.factor)
    both = STEPS.extra(replace(LOSSY, pipeline=3), 4)
    assert both.share == pytest.approx(found.share + stale.share)
    assert both.deviation**2 == pytest.approx(found.deviation**2 + stale.deviation**2)


def test_residuals_have_a_factor_of_their_own() -> None:
    kept = STEPS.extra(replace(LOSSY, residual=True), 4)
    lost = STEPS.extra(LOSSY, 4)
    assert kept.share * CALIBRATION.noise.factor == pytest.approx(lost.share * CALIBRATION.residual.factor)


def test_values_left_out_have_a_factor_of_their_own() -> None:
    dropping = StepsToLoss({"topk:0.3": CodecCost("topk:0.3", (POINT,))}, noise=3.0)
    found = dropping.extra(Plan(parse("topk:0.3"), residual=False), 4)
    assert found.share / STEPS.extra(LOSSY, 4).share == pytest.approx(
        CALIBRATION.dropped.factor / CALIBRATION.noise.factor
    )


def test_an_algorithm_that_encodes_small_sums_loses_less() -> None:
    assert STEPS.extra(replace(LOSSY, algorithm="star"), 8).share < STEPS.extra(LOSSY, 8).share


def test_a_codec_whose_loss_nobody_has_measured_is_refused() -> None:
    unknown = StepsToLoss({"quantize:4": CodecCost("quantize:4", (replace(POINT, lost=None),))}, 3.0)
    with pytest.raises(SpecError, match="expected costs of quantize:4 with a relative error"):
        unknown.extra(LOSSY, 4)
