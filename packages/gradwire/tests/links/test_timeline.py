from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gradwire.links.throttle import Timeline

REQUESTS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30)), max_size=40)


def by_ticks(requests: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bookkeeping with a set of busy ticks: slow and plain."""
    busy = set[int]()
    answers = []
    for start, duration in requests:
        mine: list[int] = []
        tick = start
        while len(mine) < duration:
            if tick not in busy:
                mine.append(tick)
            tick += 1
        busy |= set(mine)
        answers.append((mine[0], mine[-1] + 1) if mine else (start, start))
    return answers


@given(REQUESTS)
def test_every_request_gets_the_first_free_ticks(requests: list[tuple[int, int]]) -> None:
    timeline = Timeline()
    assert [timeline.occupy(*request) for request in requests] == by_ticks(requests)


def test_a_busy_wire_is_one_queue() -> None:
    timeline = Timeline()
    assert [timeline.occupy(0, 10) for _ in range(3)] == [(0, 10), (10, 20), (20, 30)]


def test_what_is_asked_for_late_gets_the_time_that_was_free() -> None:
    timeline = Timeline()
    timeline.occupy(100, 10)
    assert timeline.occupy(0, 10) == (0, 10)
    assert timeline.occupy(95, 10) == (95, 115)


def test_a_request_for_nothing_takes_nothing() -> None:
    timeline = Timeline()
    assert timeline.occupy(5, 0) == (5, 5)
    assert timeline.occupy(0, 10) == (0, 10)


def test_the_distant_past_is_forgotten_and_taken_as_free() -> None:
    timeline = Timeline()
    timeline.occupy(0, 10)
    timeline.occupy(61 * 10**9, 10)
    assert timeline.occupy(0, 10) == (0, 10)
