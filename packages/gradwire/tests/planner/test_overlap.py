"""The end of a step's exchanges, one after the other and in lanes, against hand-made timelines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.planner.overlap import Durations, StepExchanges, end_in_lanes_s, end_in_turn_s, numbers_at_once

PARTS = st.lists(st.tuples(st.floats(0, 1e3), st.floats(0.01, 1e3)), min_size=1, max_size=20)
ROUNDING_S = 1e-6


def pairs(number: int) -> float:
    """Return the seconds of an exchange alone, and of two at once."""
    return {1: 2.0, 2: 3.0}[number]


def always(seconds: float) -> Durations:
    return lambda _number: seconds


def test_exchanges_hide_behind_backward_as_far_as_it_goes() -> None:
    """The first bucket travels from 2 to 5, the second waits for it and ends at 8, the last cannot hide."""
    assert end_in_turn_s([2, 4, 10], [3, 3, 2]) == 12


def test_a_slow_exchange_queues_up() -> None:
    assert end_in_turn_s([1, 2, 3], [10, 10, 10]) == 31


def test_exchanges_end_with_the_last_one() -> None:
    assert end_in_turn_s([1], [1]) == 2
    assert end_in_turn_s([], []) == 0


@given(PARTS)
def test_what_backward_hides_lies_between_all_and_none(parts: list[tuple[float, float]]) -> None:
    ready_s = sorted(each for each, _ in parts)
    exchange_s = [each for _, each in parts]
    end_s = end_in_turn_s(ready_s, exchange_s)
    assert exchange_s[-1] - ROUNDING_S <= end_s - ready_s[-1] <= sum(exchange_s) + ROUNDING_S
    assert end_s >= sum(exchange_s) - ROUNDING_S


@pytest.mark.parametrize(("buckets", "end_s"), [(1, 2.0), (2, 3.0), (3, 5.0), (4, 6.0), (5, 8.0)])
def test_lanes_run_as_many_exchanges_at_once_as_there_are(buckets: int, end_s: float) -> None:
    assert end_in_lanes_s([0.0] * buckets, [pairs] * buckets, 2) == pytest.approx(end_s)


def test_an_exchange_slows_down_while_another_one_runs() -> None:
    """Bucket 0 is half done at 1, when bucket 1 begins; its other half takes 1.5, and half of bucket 1 1."""
    assert end_in_lanes_s([0.0, 1.0], [pairs, pairs], 2) == pytest.approx(3.5)


def test_a_bucket_waits_for_its_own_lane_even_if_another_one_is_idle() -> None:
    durations = [*map(always, (10.0, 1.0, 1.0))]
    assert end_in_lanes_s([0.0, 0.0, 0.0], durations, 2) == pytest.approx(11.0)


@given(PARTS)
def test_one_lane_is_the_exchanges_in_turn(parts: list[tuple[float, float]]) -> None:
    ready_s, exchange_s = sorted(each for each, _ in parts), [each for _, each in parts]
    durations = [*map(always, exchange_s)]
    wanted = end_in_turn_s(ready_s, exchange_s)
    assert end_in_lanes_s(ready_s, durations, 1) == pytest.approx(wanted, rel=1e-6)


@given(PARTS, st.integers(2, 16), st.floats(0, 1))
def test_no_step_ends_before_its_bound(parts: list[tuple[float, float]], lanes: int, shared: float) -> None:
    """An exchange takes a share of its time on the link, which others need, too."""
    ready_s = sorted(each for each, _ in parts)
    counts = [round(1000 * each) + 1 for _, each in parts]
    lanes = min(lanes, len(counts))
    step = StepExchanges(counts, lanes, lambda count, number: count * (1 + shared * (number - 1)) / 1000)
    assert step.least_end_s(ready_s) <= step.end_s(ready_s) + ROUNDING_S


def test_between_replayed_numbers_durations_are_interpolated() -> None:
    asked = list[int]()

    def seconds(count: int, number: int) -> float:
        asked.append(number)
        return float(count * number)

    assert StepExchanges([10] * 3, 3, seconds).end_s([0.0, 0.0, 0.0]) == pytest.approx(30.0)
    step = StepExchanges([10] * 8, 8, seconds)
    assert step.end_s([0.0] * 3 + [1e3] * 5) == pytest.approx(1050.0)
    assert set(asked) <= {*numbers_at_once(3), *numbers_at_once(8)}
