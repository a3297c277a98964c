"""The line between two ranks: what is sent, in which pattern, and what comes out for links of known rates."""

from collections.abc import Callable
from typing import Any

import pytest

from gradwire.errors import SpecError
from gradwire.links import Port, ThrottledLink, loopback
from gradwire.timing.line import Point, fit
from gradwire.timing.line_rate import QUICK, Effort, measure, without_trip
from support.distant import distant
from support.noise import likely, undisturbed

RunRanks = Callable[..., list[Any]]


def test_the_lower_rank_has_the_points_and_shows_them(run_ranks: RunRanks) -> None:
    effort = Effort((1, 256, 4096), repeats=2, time_s=0.02)
    shown: list[Point] = []
    points, nothing = run_ranks(2, lambda link: measure(link, 1 - link.rank, effort, shown.append))
    assert [point.nbytes for point in points] == [1, 256, 4096]
    assert list(points) == shown
    assert nothing == ()
    for point in points:
        assert min(point.time_s, point.nbytes_per_s, point.duplex_nbytes_per_s) > 0


def test_a_throttled_link_has_the_line_that_it_was_given(run_ranks: RunRanks) -> None:
    rate, latency_s = 20e6, 0.003
    effort = Effort((1, 1 << 17, 1 << 18), repeats=3, time_s=0.05)

    def attempt() -> None:
        links = [ThrottledLink(link, Port(rate, latency_s)) for link in loopback(2)]
        points, _ = run_ranks(2, lambda link: measure(link, 1 - link.rank, effort), links=links)
        line = fit(points)
        assert line.latency_s >= latency_s
        assert points[-1].time_s > latency_s + 0.95 * (1 << 18) / rate
        assert points[-1].duplex_nbytes_per_s < 1.05 * rate
        likely(line.latency_s < 3 * latency_s, line)
        likely(0.6 * rate < line.nbytes_per_s < 1.05 * rate, line)  # a line's slope may err both ways
        likely(points[-1].duplex_nbytes_per_s > 0.6 * rate, points)  # the directions do not share a rate

    undisturbed(attempt)


@pytest.mark.parametrize("latency_s", [0.005, 0.025])
def test_a_distant_link_has_its_rate_and_not_that_of_a_window_that_opens(
    run_ranks: RunRanks, latency_s: float
) -> None:
    rate = 25e6
    effort = Effort((1, 1 << 16, 1 << 17, 1 << 19), 2, 0.001, trips=2)

    def attempt() -> None:
        links = distant(rate, latency_s)
        points, _ = run_ranks(2, lambda link: measure(link, 1 - link.rank, effort), links=links)
        line = fit(points)
        assert line.latency_s >= latency_s
        likely(0.8 * rate < line.nbytes_per_s < 1.15 * rate, line)
        likely(line.duplex_share > 0.7, line)

    undisturbed(attempt)


def test_a_round_trip_is_taken_from_a_stream_but_never_most_of_it() -> None:
    assert without_trip(0.5, 0.1) == pytest.approx(0.4)
    assert without_trip(0.5, 0.4) == 0.25
    assert without_trip(0.5, 0.0) == 0.5


def test_a_slow_line_is_not_measured_for_hours(run_ranks: RunRanks) -> None:
    links = [ThrottledLink(link, Port(1e6)) for link in loopback(2)]
    effort = Effort((1, 1 << 14, 1 << 20, 1 << 30), repeats=1, time_s=0.001)
    points, _ = run_ranks(2, lambda link: measure(link, 1 - link.rank, effort), links=links)
    assert points[0].nbytes == 1
    assert points[-1].nbytes <= 1 << 14, "this one takes 16 ms, not 5"


@pytest.mark.parametrize(
    "wrong",
    [
        {"sizes": ()},
        {"sizes": (0, 1)},
        {"sizes": (4, 2)},
        {"sizes": (1,), "repeats": 0},
        {"sizes": (1,), "time_s": float("nan")},
        {"sizes": (1,), "window": 0},
        {"sizes": (1,), "trips": 0},
    ],
)
def test_an_effort_that_measures_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        Effort(**wrong)


def test_the_quick_effort_lets_a_line_be_fitted() -> None:
    points = [Point(nbytes, 1e-4 + max(0, nbytes - 250_000) / 1e8, 1e8, 1e8) for nbytes in QUICK.sizes]
    line = fit(points)
    assert (line.latency_s, line.nbytes_per_s) == pytest.approx((1e-4, 1e8))
    assert line.burst_nbytes == pytest.approx(250_000)
