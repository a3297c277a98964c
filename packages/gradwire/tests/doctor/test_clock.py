from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from gradwire.doctor.compare import check_clocks, measure_offset, tell_time
from gradwire.doctor.finding import Offset
from gradwire.links import Link

SECOND_NS = 10**9


def compare_clocks(link: Link, ahead_ns: int) -> Offset | None:
    if link.rank == 0:
        return measure_offset(link, 1)
    tell_time(link, 0, lambda: time.time_ns() + ahead_ns)
    return None


@pytest.mark.parametrize("ahead_s", [0.0, 12.5, -3600.0])
def test_the_offset_is_right_within_what_it_says(run_ranks: Callable[..., list[Any]], ahead_s: float) -> None:
    offset, _ = run_ranks(2, compare_clocks, int(ahead_s * SECOND_NS))
    assert 0 < offset.uncertainty_s < 5
    assert abs(offset.offset_s - ahead_s) <= offset.uncertainty_s + 1e-6


class Ticks:
    """A clock that is moved by hand."""

    def __init__(self, *readings: int) -> None:
        self._readings = list(readings)

    def __call__(self) -> int:
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]


def read_ticks(link: Link) -> Offset | None:
    if link.rank == 0:
        # Trips of 1000, 100 and then 4000 ns; only during the second one the middle is at 5050.
        return measure_offset(
            link, 1, Ticks(0, 1000, 5000, 5100, 8000, 12_000, *[20_000, 24_000] * 13, 24_000)
        )
    tell_time(link, 0, Ticks(10**6, 6050, 10**7))
    return None


def test_the_shortest_trip_counts(run_ranks: Callable[..., list[Any]]) -> None:
    offset, _ = run_ranks(2, read_ticks)
    assert offset == Offset(offset_s=1000e-9, uncertainty_s=50e-9)


def test_clocks_that_are_close_are_well() -> None:
    finding = check_clocks({1: Offset(2e-3, 1e-4), 2: Offset(-50e-3, 1e-4)})
    assert finding.result == "ok"
    assert finding.detail == "largest offset from rank 0: rank 2, -50ms ± 100us"


def test_clocks_that_are_far_off_are_a_warning() -> None:
    finding = check_clocks({1: Offset(0.101, 1e-4), 2: Offset(-7.0, 1e-4), 3: Offset(0.0, 1e-4)})
    assert finding.result == "warn"
    assert finding.detail.startswith("ranks 1-2: expected clocks within 100ms of rank 0's, got -7s")
