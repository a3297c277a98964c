from __future__ import annotations

from itertools import pairwise

import pytest

from gradwire.autotune.settings import DEFAULT
from gradwire.autotune.states import Watch
from gradwire.autotune.steps import StepTime
from support.told_line import WINDOW

PATIENCE, MOST_PATIENCE, QUIET = DEFAULT.patience_steps, DEFAULT.most_patience_steps, DEFAULT.quiet_steps
FAST, SLOW = StepTime(0.1, 0.05, 0.02), StepTime(0.1, 0.05, 0.5)


def windows(watch: Watch, first: int, now: StepTime, count: int = 60) -> int | None:
    """Return the step before which the watch asks for a decision, looking at window after window."""
    for step in range(first + WINDOW, first + count * WINDOW, WINDOW):
        if watch.changed(step, now):
            return step
    return None


@pytest.mark.parametrize(("before", "after"), [(FAST, SLOW), (SLOW, FAST)])
def test_a_line_that_changes_is_noticed_once_patience_allows(before: StepTime, after: StepTime) -> None:
    watch = Watch()
    watch.decided(6)
    assert not watch.changed(26, before), "the first window is the reference"
    assert windows(watch, 26, before) is None
    watch = Watch()
    watch.decided(6)
    assert not watch.changed(26, before)
    assert windows(watch, 26, after) == 6 + PATIENCE


def test_a_small_change_is_none_and_slower_computation_is_one() -> None:
    watch = Watch()
    watch.decided(6)
    watch.changed(26, FAST)
    assert windows(watch, 26, StepTime(0.11, 0.055, 0.03)) is None
    assert windows(watch, 26, StepTime(0.2, 0.1, 0.02)) is not None


def test_waiting_that_becomes_computing_is_no_change() -> None:
    watch = Watch()
    watch.decided(6)
    watch.changed(26, StepTime(0.06, 0.03, 0.06))
    assert windows(watch, 26, StepTime(0.12, 0.06, 0.0)) is None


def test_a_line_that_goes_back_and_forth_is_followed_less_and_less() -> None:
    watch, step, gaps = Watch(), 6, []
    watch.decided(step)
    times = [FAST, SLOW] * 6
    for before, after in pairwise(times):
        watch.changed(step + WINDOW, before)
        found = windows(watch, step + WINDOW, after)
        assert found is not None
        gaps.append(found - step)
        step = found
        watch.decided(step)
    assert gaps == sorted(gaps)
    assert gaps[0] == PATIENCE
    assert watch.patience == MOST_PATIENCE


def test_patience_comes_back_after_quiet_steps() -> None:
    watch = Watch()
    watch.decided(10)
    watch.decided(100)
    assert watch.patience == 2 * PATIENCE
    watch.decided(100 + 2 * PATIENCE + QUIET + 1)
    assert watch.patience == PATIENCE


def test_a_plan_that_was_adapted_is_compared_with_its_own_first_window() -> None:
    watch = Watch()
    watch.decided(6)
    watch.changed(26, FAST)
    watch.forget()
    assert windows(watch, 26, SLOW) is None
    assert windows(watch, 26, FAST) is not None


def test_a_plan_that_stays_is_compared_with_its_first_window_after_an_earlier_decision() -> None:
    watch = Watch()
    watch.decided(6)
    watch.changed(26, FAST)
    watch.decided(46, keeps_reference=True)
    assert windows(watch, 46, SLOW) is not None
    watch.decided(246)
    assert windows(watch, 246, SLOW) is None


def test_a_part_of_the_patience_passes_sooner() -> None:
    watch = Watch()
    watch.decided(6)
    assert not watch.may_decide(6 + PATIENCE // 4 - 1, 0.25)
    assert watch.may_decide(6 + PATIENCE // 4, 0.25)
    assert not watch.may_decide(6 + PATIENCE - 1)
    assert watch.may_decide(6 + PATIENCE)
