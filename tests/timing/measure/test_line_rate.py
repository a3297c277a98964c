"""The line between two ranks: what is sent, in which pattern, and what comes out for links of known rates."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.errors import SpecError
from gradwire.links import Link, Port, ThrottledLink, loopback
from gradwire.links.base import Receiving, Sending, Wrapper
from gradwire.timing.measure.line_rate import QUICK, Effort, measure
from gradwire.timing.measure.traffic import Pair
from gradwire.timing.replay.line import Point, fit
from support.noise import likely, undisturbed

RunRanks = Callable[..., list[Any]]


class Counting(Wrapper):
    """Counts the messages that a rank sends, by their sizes, and the most that are under way."""

    def __init__(self, inner: Link) -> None:
        super().__init__(inner)
        self.sent = Counter[int]()
        self.under_way = self.most_under_way = 0

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        self.sent[frame.numel()] += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        return _CountedSending(self, self._inner.isend(to, frame))

    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        return self._inner.irecv(source, buffer)


class _CountedSending:
    def __init__(self, link: Counting, inner: Sending) -> None:
        self._link, self._inner = link, inner

    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> None:
        self._inner.wait(timeout_s, keepalive)
        self._link.under_way -= 1


def counting() -> list[Counting]:
    return [Counting(link) for link in loopback(2)]


def test_a_round_trip_is_one_message_each_way(run_ranks: RunRanks) -> None:
    links = counting()
    trips, nothing = run_ranks(2, lambda link: Pair(link, 1 - link.rank, 4).round_trips(64, 7), links=links)
    assert len(trips) == 7
    assert min(trips) > 0
    assert nothing == []
    assert [link.sent for link in links] == [{64: 7}, {64: 7}]


@pytest.mark.parametrize("window", [1, 3, 100])
def test_a_stream_goes_one_way_within_its_window(run_ranks: RunRanks, window: int) -> None:
    links = counting()
    run_ranks(2, lambda link: Pair(link, 1 - link.rank, window).stream(64, 20), links=links)
    assert [link.sent for link in links] == [{64: 20}, {1: 1}], "the other rank only says that all is there"
    assert links[0].most_under_way == min(window, 20)


def test_a_duplex_stream_goes_both_ways(run_ranks: RunRanks) -> None:
    links = counting()
    run_ranks(2, lambda link: Pair(link, 1 - link.rank, 4).duplex(64, 20), links=links)
    assert [link.sent for link in links] == [{64: 20, 1: 1}] * 2


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
