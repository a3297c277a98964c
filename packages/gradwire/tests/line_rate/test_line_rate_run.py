"""A line-rate measurement of ranks that are threads: who measures when, what rank 0 tells, what is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradwire.errors import JobError
from gradwire.launch.local import RankContext, Task
from gradwire.line_rate import run as line_rate_run
from gradwire.line_rate.run import HostDone, LineRateOptions, PairDone, PointDone, run_line_rate, work
from gradwire.links import Link
from gradwire.timing.line import HostCost, LineRate, Point, fit
from gradwire.timing.line_rate import Effort

RunRanks = Callable[..., list[Any]]
QUICK = Effort((1, 64), repeats=1, time_s=0.001, window=2)
POINTS = (Point(1, 1e-4, 1e4, 1e4), Point(64, 2e-4, 1e6, 5e5))
HOST = HostCost(1e-5, 2e-5, cores=2)


def context_of(link: Any, told: list[Any]) -> RankContext[Any]:
    return RankContext(link.rank, link.world, told.append, lambda: link)


def test_every_pair_comes_once_and_the_first_pair_alone_by_default() -> None:
    assert LineRateOptions(QUICK, workers=4).pairs == ((0, 1),)
    every = LineRateOptions(QUICK, workers=4, all_pairs=True).pairs
    assert every == ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))


@pytest.mark.parametrize("change", [{"repeats": 1001}, {"time_s": 4000.0}, {"window": 10_001}])
def test_what_hardly_ends_is_refused_before_it_begins(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_rate_run, "perform", pytest.fail)
    with pytest.raises(JobError, match="expected at most 1000 for --repeats, 3600"):
        run_line_rate(LineRateOptions(replace(QUICK, **change)))


def test_ranks_measure_in_turn_and_rank_0_tells_all(
    run_ranks: RunRanks, make_meeting: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_rate_run, "met_ranks", make_meeting(3).met)
    monkeypatch.setattr(line_rate_run, "_repeats", lambda _: 0)  # a line that is too slow for frames
    options = LineRateOptions(QUICK, workers=3, all_pairs=True)

    def act(link: Link) -> list[Any]:
        told: list[Any] = []
        work(context_of(link, told), options)
        return told

    first, *others = run_ranks(3, act)
    assert others == [[], []]
    sizes = [(event.pair, event.point.nbytes) for event in first if isinstance(event, PointDone)]
    assert sizes == [((0, 1), 1), ((0, 1), 64), ((0, 2), 1), ((0, 2), 64)], "its own, as they come"
    done = {event.pair: event.points for event in first if isinstance(event, PairDone)}
    assert list(done) == [(0, 1), (0, 2), (1, 2)]
    assert [event.point for event in first if isinstance(event, PointDone)][:2] == list(done[0, 1])
    assert not any(isinstance(event, HostDone) for event in first)


def test_frames_are_measured_where_the_line_is_fast_enough(
    run_ranks: RunRanks, make_meeting: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object) -> tuple[Point, ...]:
        return POINTS

    monkeypatch.setattr(line_rate_run, "met_ranks", make_meeting(2).met)
    monkeypatch.setattr(line_rate_run, "measure", measured)
    monkeypatch.setattr(line_rate_run, "_repeats", lambda _: 1)

    def act(link: Link) -> list[Any]:
        told: list[Any] = []
        work(context_of(link, told), LineRateOptions(QUICK))
        return told

    (*_, pair, host), other = run_ranks(2, act)
    assert pair == PairDone((0, 1), POINTS)
    assert isinstance(host, HostDone)
    assert host.host.ranks_per_machine == 2
    assert other == []


def test_lines_are_shown_and_the_first_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def perform(task: Task[Any, Any], show: Callable[[Any], None]) -> None:
        for pair in task.options.pairs:
            for point in POINTS:
                show(PointDone(pair, point))
            show(PairDone(pair, POINTS))
        show(HostDone(HOST))

    monkeypatch.setattr(line_rate_run, "perform", perform)
    file = tmp_path / "line.json"
    rates = run_line_rate(LineRateOptions(QUICK, workers=3, all_pairs=True, json_file=file))
    assert list(rates) == [(0, 1), (0, 2), (1, 2)]
    assert {rate.line for rate in rates.values()} == {fit(POINTS)}
    printed = capsys.readouterr().out
    assert "6/6 ranks 1 and 2, 64B: 200us, 8mbit" in printed
    assert "links of all pairs" in printed
    kept = LineRate.load(file)
    assert (kept.points, kept.host) == (POINTS, HOST)
