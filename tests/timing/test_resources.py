from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.timing.resources import Cores, Port


def test_a_port_serves_one_after_the_other() -> None:
    port = Port(100.0)
    assert port.take(0.0, 50.0) == (0.0, 0.5)
    assert port.take(0.1, 50.0) == (0.5, 1.0)
    assert port.take(2.0, 100.0) == (2.0, 3.0)
    assert port.busy_s == pytest.approx(2.0)


def test_a_burst_passes_at_once_and_is_earned_again_in_a_pause() -> None:
    port = Port(100.0, burst_nbytes=50.0)
    assert port.take(0.0, 50.0) == (0.0, 0.0)
    assert port.take(0.0, 50.0) == (0.0, 0.5)
    assert port.take(0.75, 50.0)[1] == pytest.approx(1.0)  # half of the burst has come back
    assert port.take(9.0, 150.0)[1] == pytest.approx(10.0)


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1000)), min_size=1),
    st.floats(1, 1e3),
    st.floats(0, 500),
)
def test_no_port_is_faster_than_its_rate_and_burst(
    asked: list[tuple[float, float]], rate: float, burst: float
) -> None:
    port = Port(rate, burst)
    asked.sort()
    ends = [port.take(start, nbytes)[1] for start, nbytes in asked]
    total = sum(nbytes for _, nbytes in asked)
    assert ends[-1] >= asked[0][0] + (total - burst) / rate - 1e-6
    assert all(end >= start for end, (start, _) in zip(ends, asked, strict=True))


def test_an_endless_rate_takes_no_time() -> None:
    assert Port(math.inf).take(1.0, 1e12) == (1.0, 1.0)


def test_cores_work_side_by_side_and_then_one_waits() -> None:
    cores = Cores(2)
    assert [cores.take(0.0, 1.0) for _ in range(3)] == [1.0, 1.0, 2.0]
    assert cores.take(5.0, 0.0) == 5.0
