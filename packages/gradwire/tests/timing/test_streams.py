from __future__ import annotations

import heapq
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.timing.streams import NEWCOMER, QUEUED_NBYTES, ReplayPort, ReplayStream, Streams


def play(pushes: list[tuple[float, ReplayStream, str, float]]) -> dict[str, float]:
    """Return when each load has passed, for pushes of (when, stream, load, nbytes)."""
    events: list[tuple[float, int, tuple[ReplayStream, int] | tuple[ReplayStream, str, float]]] = []
    number = 0

    def schedule(when: float, stream: ReplayStream, version: int) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (when, number, (stream, version)))

    streams = Streams[str](schedule)
    for when, stream, load, nbytes in pushes:
        number += 1
        heapq.heappush(events, (when, number, (stream, load, nbytes)))
    passed: dict[str, float] = {}
    while events:
        now, _, event = heapq.heappop(events)
        if len(event) == 3:
            streams.push(event[0], event[1], event[2], now)
        else:
            found = streams.pass_first(event[0], event[1], now)
            if found is not None:
                passed[found] = now
    return passed


def test_loads_of_one_stream_pass_one_after_the_other() -> None:
    stream = ReplayStream([ReplayPort(100.0), ReplayPort(50.0)])
    passed = play([(0.0, stream, "a", 100.0), (0.0, stream, "b", 50.0), (9.0, stream, "c", 50.0)])
    assert passed == pytest.approx({"a": 2.0, "b": 3.0, "c": 10.0})


def test_two_streams_into_one_port_halve_it_until_one_has_passed() -> None:
    door = ReplayPort(100.0)
    one, other = (ReplayStream([ReplayPort(100.0), door]) for _ in range(2))
    passed = play([(0.0, one, "long", 150.0), (0.0, other, "short", 50.0)])
    assert passed == pytest.approx({"short": 1.0, "long": 2.0})


def test_what_one_stream_cannot_use_goes_to_the_others() -> None:
    """Three streams leave a port of 90; one of them is held to 10 elsewhere: max-min gives 10, 40, 40."""
    source = ReplayPort(90.0)
    slow = ReplayStream([source, ReplayPort(10.0)])
    fast = [ReplayStream([source, ReplayPort(1000.0)]) for _ in range(2)]
    passed = play([(0.0, slow, "slow", 10.0), (0.0, fast[0], "a", 40.0), (0.0, fast[1], "b", 40.0)])
    assert passed == pytest.approx({"slow": 1.0, "a": 1.0, "b": 1.0})


def test_a_late_comer_slows_what_is_under_way_but_gets_less() -> None:
    door = ReplayPort(100.0)
    one, other = ReplayStream([door]), ReplayStream([door])
    passed = play([(0.0, one, "first", 200.0), (1.0, other, "second", 100.0)])
    assert passed == pytest.approx({"first": 1.0 + (1.0 + NEWCOMER), "second": 3.0})


def test_a_burst_passes_at_once_and_is_earned_again_in_a_pause() -> None:
    port = ReplayPort(100.0, burst_nbytes=50.0)
    stream = ReplayStream([port])
    passed = play([(0.0, stream, "a", 50.0), (1.0, stream, "b", 150.0), (2.25, stream, "c", 125.0)])
    assert passed == pytest.approx({"a": 0.0, "b": 2.0, "c": 3.25})  # c has earned 25 in a quarter
    assert port.busy_s == pytest.approx(3.25)


def test_a_late_comer_from_another_host_gets_an_equal_share() -> None:
    door = ReplayPort(100.0)
    one, other = (ReplayStream([ReplayPort(1000.0), door]) for _ in range(2))
    passed = play([(0.0, one, "first", 200.0), (1.0, other, "second", 100.0)])
    assert passed == pytest.approx({"first": 3.0, "second": 3.0})


def test_a_newcomer_stands_behind_what_its_host_has_queued_but_not_behind_all_of_a_frame() -> None:
    home, far = ReplayPort(1e6), ReplayPort(1e9)
    streams = Streams[str](lambda _when, _stream, _version: None)
    assert ReplayStream([home, far]).hold(1.0, 10.0) == 1.0
    small, large, newcomer = ReplayStream([home]), ReplayStream([home]), ReplayStream([home, far])
    streams.push(small, "small", 1000.0, 0.0)
    assert newcomer.hold(0.0, 10.0) == pytest.approx(1e-3)
    assert newcomer.hold(0.9e-3, 10.0) == pytest.approx(1e-3), "most of it has passed by then"
    streams.push(large, "large", 1e9, 0.0)
    entry_s = newcomer.hold(0.0, 10.0)
    assert entry_s == pytest.approx((1000.0 + QUEUED_NBYTES) / 1e6)
    assert newcomer.hold(entry_s / 2, 10.0) >= entry_s, "no frame overtakes one that is held"
    streams.push(newcomer, "own", 10.0, entry_s)
    assert newcomer.hold(2.0, 10.0) == 2.0, "what follows its own frames does not queue again"
    assert ReplayStream([ReplayPort(math.inf), home]).hold(0.0, 10.0) == 0.0


def test_newcomers_of_one_host_enter_in_their_order_each_after_the_queued_bytes_before_it() -> None:
    home = ReplayPort(1e6)
    streams = Streams[str](lambda _when, _stream, _version: None)
    first, second, third, last = (ReplayStream([home]) for _ in range(4))
    streams.push(first, "first", 1000.0, 0.0)
    assert second.hold(0.0, 3000.0) == pytest.approx(1e-3)
    assert third.hold(0.0, 1e9) == pytest.approx(4e-3)
    assert last.hold(0.0, 10.0) == pytest.approx((4000.0 + QUEUED_NBYTES) / 1e6)
    streams.push(second, "second", 3000.0, 1e-3)
    assert ReplayStream([home]).hold(1e-3, 10.0) == pytest.approx((4010.0 + QUEUED_NBYTES) / 1e6)


def test_an_endless_line_takes_no_time() -> None:
    assert play([(1.0, ReplayStream([ReplayPort(math.inf)]), "a", 1e12)]) == {"a": 1.0}


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.integers(0, 3), st.integers(0, 3), st.floats(1, 1000)),
        min_size=1,
        max_size=20,
    )
)
def test_no_port_passes_more_than_its_rate(loads: list[tuple[float, int, int, float]]) -> None:
    out, into = [ReplayPort(100.0) for _ in range(4)], [ReplayPort(70.0) for _ in range(4)]
    streams = {(a, b): ReplayStream([out[a], into[b]]) for a in range(4) for b in range(4)}
    pushes = [(when, streams[a, b], str(i), nbytes) for i, (when, a, b, nbytes) in enumerate(loads)]
    passed = play(pushes)
    assert len(passed) == len(loads)
    begin = min(when for when, *_ in loads)
    for port in (*out, *into):
        if port.carried_nbytes:
            assert max(passed.values()) >= begin + port.busy_s - 1e-6
    alone = sum(nbytes for *_, nbytes in loads) / 70.0
    assert (
        max(passed.values()) <= max(when for when, *_ in loads) + alone + 1e-6
    )  # never idle with work to do
