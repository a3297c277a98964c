from __future__ import annotations

import pytest

from gradwire.planner.loss import CALIBRATION, Effect
from gradwire_lab.closed_forms.extra_steps import RUNS, MethodRun, calibrate


def test_factors_and_the_power_are_those_of_runs_on_a_curve() -> None:
    runs = [
        *(
            MethodRun(task, "ecsq:1", added, 0.5 * added**0.7, 0.0)
            for task in "ab"
            for added in (0.01, 0.1, 0.2)
        ),
        *(MethodRun("a", "ecsq:1 +residual", added, 0.2 * added**0.7, 0.0) for added in (0.1, 0.2)),
        MethodRun("a", "topk:0.3", 0.1, 2 * 0.1**0.7, 0.0),
        MethodRun("a", "identity K=2", 0.0, 0.03, 0.0),
    ]
    found = calibrate(runs)
    assert found.power == pytest.approx(0.7)
    effects = (found.noise, 0.5), (found.dropped, 2.0), (found.residual, 0.2), (found.stale, 0.03)
    for effect, factor in effects:
        assert effect.factor == pytest.approx(factor)
        assert effect.deviation == pytest.approx(0.0, abs=1e-9)


def test_tasks_that_differ_by_a_factor_deviate_and_leave_the_power() -> None:
    runs = [
        *(MethodRun("a", "ecsq:1", added, 0.5 * added, 0.0) for added in (0.1, 0.2)),
        *(MethodRun("b", "ecsq:1", added, 2.0 * added, 0.0) for added in (0.01, 0.02)),
        MethodRun("a", "ecsq:1 +residual", 0.1, 0.1, 0.0),
        MethodRun("a", "topk:0.3", 0.1, 0.3, 0.0),
        *(MethodRun(task, "identity K=2", 0.0, extra, 0.0) for task, extra in (("a", 0.02), ("b", 0.04))),
    ]
    found = calibrate(runs)
    assert found.power == pytest.approx(1.0)
    assert found.noise == Effect(pytest.approx(1.0), pytest.approx(1.0))  # type: ignore[arg-type]
    assert found.stale == Effect(pytest.approx(0.03), pytest.approx(0.01))  # type: ignore[arg-type]


def test_what_is_used_is_what_the_runs_say() -> None:
    found = calibrate(RUNS)
    assert found.power == pytest.approx(CALIBRATION.power, rel=1e-12)
    for name in ("noise", "dropped", "residual", "stale"):
        effect, used = getattr(found, name), getattr(CALIBRATION, name)
        assert (effect.factor, effect.deviation) == pytest.approx((used.factor, used.deviation), rel=1e-12)
    assert 0.4 < CALIBRATION.power <= 1.1, "noise costs about its share of steps"
    assert 0.2 < CALIBRATION.residual.factor < 2 * CALIBRATION.noise.factor < 3
    assert CALIBRATION.noise.factor < CALIBRATION.dropped.factor, "some values never arrive"
    assert 0 < CALIBRATION.stale.factor < 0.2
    assert len({run.task for run in RUNS}) >= 3
