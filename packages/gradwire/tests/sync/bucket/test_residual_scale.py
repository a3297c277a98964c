"""Residuals in the units of a scaled loss, and values that no step leaves behind."""

from __future__ import annotations

import math

import pytest

from gradwire.codecs import parse
from gradwire.errors import StateError
from gradwire.plan import Plan
from gradwire.sync.bucket.residual import Residuals, redivide

KEEPS = Plan(parse("topk:0.2"))


def test_residuals_follow_a_scale_and_say_in_which_units_they_are() -> None:
    ours = Residuals(KEEPS, 0, 2)
    residual = ours.of("a", 3)
    assert residual is not None
    ours.follow(1024.0)  # the first scale is their own
    residual.fill_(8.0)
    for scale, wanted in ((512.0, 4.0), (0.0, 4.0), (math.inf, 4.0), (math.nan, 4.0), (2048.0, 16.0)):
        ours.follow(scale)
        assert residual.tolist() == [wanted] * 3
    state = ours.state_dict()
    assert state["scale"] == 2048.0
    again = Residuals(KEEPS, 0, 2)
    again.follow(65536.0)
    again.load_state_dict(state)
    again.follow(1.0)  # a run that goes on without a scale
    loaded = again.of("a", 3)
    assert loaded is not None
    assert loaded.tolist() == [16 / 2048] * 3
    other = {**state, "rank": 1}
    assert [each["scale"] for each in redivide([state, other], 3)] == [2048.0] * 3
    with pytest.raises(StateError, match=r"the same loss scale on all ranks, got \[2048.0, 1.0\]"):
        redivide([state, {**other, "scale": 1.0}], 3)
    for wrong in (0.0, -1.0, math.nan, "2"):
        with pytest.raises(StateError, match="a finite number above 0 for scale in a state of"):
            again.load_state_dict({**state, "scale": wrong})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_state_with_a_value_that_no_step_leaves_is_refused(bad: float) -> None:
    ours = Residuals(KEEPS, 0, 1)
    ours.of("a", 3)
    state = ours.state_dict()
    state["residuals"]["a"][1] = bad
    with pytest.raises(StateError, match="finite values in the residual 'a', got a NaN or an infinity"):
        ours.load_state_dict(state)
