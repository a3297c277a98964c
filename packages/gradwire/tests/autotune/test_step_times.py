from __future__ import annotations

import pytest

from gradwire.autotune.steps import StepTimes
from gradwire.machine import ThreadSeconds
from support.told_line import WINDOW


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def take(times: StepTimes, clock: Clock, forward_s: float = 1.0, wait_s: float = 0.5) -> None:
    """Take a step whose first bucket has a quarter of the floats, and whose backward pass takes 4 s."""
    clock.now += forward_s + 1.0
    times.handed_over(100)
    clock.now += 3.0
    times.handed_over(300)
    clock.now += wait_s
    times.end()


def test_a_step_is_computation_and_what_nothing_hides_of_the_exchange() -> None:
    clock = Clock()
    times = StepTimes(clock)
    take(times, clock)
    assert len(times) == 0, "nobody knows when the first step began"
    take(times, clock)
    found = times.median
    assert (found.compute_s, found.backward_s, found.exposed_s) == pytest.approx((5.0, 4.0, 0.5))
    assert found.step_s == pytest.approx(5.5)


def test_steps_disagree_by_what_half_of_them_differ_by() -> None:
    clock = Clock()
    times = StepTimes(clock)
    assert times.disagreement == 0.0
    for wait_s in (9.0, 3.0, 4.0, 5.0, 6.0, 95.0):
        take(times, clock, wait_s=wait_s)
    assert times.disagreement == pytest.approx(0.1), "quartiles 9 and 11 of 8, 9, 10, 11, 100"


def test_medians_forget_old_steps_and_do_not_show_a_long_one() -> None:
    clock = Clock()
    times = StepTimes(clock)
    for wait_s in [9.0] * 5 + [0.25] * WINDOW:
        take(times, clock, wait_s=wait_s)
    take(times, clock, forward_s=100.0)
    assert len(times) == WINDOW
    assert times.median.exposed_s == pytest.approx(0.25)
    assert times.median.compute_s == pytest.approx(5.0)


def test_what_is_left_out_belongs_to_no_step() -> None:
    clock = Clock()
    times = StepTimes(clock)
    take(times, clock)
    clock.now += 7.0
    times.leave_out(7.0)
    take(times, clock)
    assert times.median.compute_s == pytest.approx(5.0)
    times.forget()
    times.leave_out(1.0)
    take(times, clock)
    assert len(times) == 0


@pytest.mark.parametrize("says_itself", [False, True])
def test_so_many_of_the_next_steps_do_not_count(says_itself: bool) -> None:
    clock = Clock()
    times = StepTimes(clock)
    take(times, clock)
    times.forget(3)
    for number in range(5):
        if says_itself:
            clock.now += 1.0
            times.end(0.1 * number)
        else:
            take(times, clock, wait_s=0.1 * number)
    assert len(times) == 2
    assert times.median.exposed_s == pytest.approx(0.35)


def test_a_method_says_itself_how_long_it_has_waited() -> None:
    clock = Clock()
    times = StepTimes(clock)
    for _ in range(2):
        clock.now += 5.0
        times.end(2.0)
    found = times.median
    assert len(times) == 1
    assert (found.compute_s, found.backward_s, found.exposed_s) == pytest.approx((3.0, 0.0, 2.0))


def test_with_one_bucket_nobody_knows_when_backward_began() -> None:
    clock = Clock()
    times = StepTimes(clock)
    for _ in range(2):
        clock.now += 2.0
        times.handed_over(10)
        times.end()
    assert times.median.backward_s == 0.0
    times.end()
    assert len(times) == 1, "a step without a bucket says nothing"


def test_buckets_of_a_method_that_tells_its_waits_are_not_kept() -> None:
    times = StepTimes()
    for _ in range(3):
        times.handed_over(10)
        times.end(0.0)
    assert times._buckets == []


@pytest.mark.parametrize(
    ("sharing", "busy_s", "delayed_s", "compute_s"),
    [
        (None, 2.0, 2.5, 5.0),
        (1.0, 2.0, 2.5, 2.5),  # half a second of other waits
        (0.5, 2.0, 2.5, 2.5),
        (1.5, 2.0, 2.5, 3.5),  # while all ranks compute, each waits for half of its time
        (2.0, 3.0, 2.0, 5.0),  # never more than was measured
        (1.0, 4.9, 4.9, 4.9),  # never less than the CPU time
    ],
)
def test_time_in_which_an_exchange_takes_the_cores_is_exposed(
    sharing: float | None, busy_s: float, delayed_s: float, compute_s: float
) -> None:
    clock, spent = Clock(), [ThreadSeconds(100.0, 50.0)]
    times = StepTimes(clock, spent=lambda: spent[0])
    times.sharing = sharing
    clock.now += 1.0
    times.end()
    clock.now += 1.0
    paused = times.read()
    clock.now += 9.0
    spent[0] = ThreadSeconds(107.0, 52.0)  # of other work, which is left out
    times.leave_out_since(paused)
    clock.now += 1.0
    times.handed_over(100)
    clock.now += 3.0
    spent[0] = ThreadSeconds(107.0 + busy_s, 52.0 + delayed_s)
    times.handed_over(300)
    clock.now += 0.5
    times.end()
    found = times.median
    assert found.compute_s == pytest.approx(compute_s)
    assert found.backward_s == pytest.approx(4.0 * compute_s / 5.0)
    assert found.step_s == pytest.approx(5.5), "the step takes as long as it took"


def test_a_step_that_began_before_the_sharing_was_known_is_timed_by_the_clock() -> None:
    clock = Clock()
    times = StepTimes(clock, spent=lambda: ThreadSeconds(100.0, 50.0))
    take(times, clock)
    times.sharing = 1.0
    take(times, clock)
    assert times.median.compute_s == pytest.approx(5.0)
