"""A sweep over configurations of ranks that are threads: what is measured, told, and kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from gradwire.errors import GradwireError, JobError
from gradwire.launch.local import RankContext, Task
from gradwire.launch.rendezvous import check_same_options
from gradwire.links import Link
from gradwire.timing.line import Line, Point, fit
from gradwire_lab.benchmark import allreduce_run
from gradwire_lab.benchmark.allreduce import TORCH, Checked, Result, Timing
from gradwire_lab.benchmark.allreduce_run import AllReduceOptions, LineMeasured, check, run_allreduce, work

RunRanks = Callable[..., list[Any]]
LINE = Line(1e-4, 1e8)
SMALL = AllReduceOptions(
    codecs=("identity", "quantize:8"), sizes=(4000,), iterations=4, warmup=1, measures_line=False
)


def context_of(link: Any, told: list[Any]) -> RankContext[Any]:
    return RankContext(link.rank, link.world, told.append, lambda: link)


def names(options: AllReduceOptions) -> list[str]:
    return [str(each) for each in options.configurations]


def test_torch_comes_before_the_others_of_its_size_unless_a_link_is_paced() -> None:
    options = replace(SMALL, sizes=(4000, 8000), algorithms=("ring", "star"))
    ours = ["ring identity", "ring quantize:8", "star identity", "star quantize:8"]
    sizes = ["4kB", "8kB"]
    assert names(options) == [f"{each} {size}" for size in sizes for each in (TORCH, *ours)]
    for without in (replace(options, torch_too=False), replace(options, link="1gbit")):
        assert names(without) == [f"{each} {size}" for size in sizes for each in ours]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sizes": (6,)}, r"expected multiples of 4 bytes \(float32\) for --sizes, got 6"),
        ({"segments": (100,)}, "expected multiples of 16384 bytes for --segments, got 100"),
        ({"codecs": ("zip",)}, "unknown codec 'zip'"),
        ({"worlds": (2, 65)}, "--workers: expected 2 to 64, got 65"),
        ({"warmup": -1}, "--warm-up from 0 to 1000000, got 4 and -1"),
        ({"pause_s": 61.0}, "--pause from 0 to 60 seconds, got 20 and 61"),
        ({"worlds": (64,), "sizes": (1 << 40,)}, "of memory on this machine, got"),
    ],
)
def test_options_that_cannot_work_are_named(change: dict[str, Any], reason: str) -> None:
    check(SMALL)
    with pytest.raises(GradwireError, match=reason):
        check(replace(SMALL, **change))


def test_every_configuration_is_checked_and_timed_and_rank_0_tells(
    run_ranks: RunRanks, make_meeting: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allreduce_run, "met_ranks", make_meeting(3).met)
    options = replace(SMALL, line=LINE)

    def act(link: Link) -> list[Any]:
        told: list[Any] = []
        work(context_of(link, told), options)
        return told

    results, *others = run_ranks(3, act)
    assert others == [[], []]
    assert [str(each.configuration) for each in results] == names(options)
    for each in results:
        assert (each.world, each.line, len(each.timing.seconds)) == (3, LINE, 4)
        assert each.checked.largest_error <= each.checked.allowed_error
    torchs, plain, lossy = results
    assert torchs.checked.wire_nbytes == (0, 0, 0)
    assert plain.checked.ratio < 1 < lossy.checked.ratio


def test_few_iterations_do_where_they_take_long(
    run_ranks: RunRanks, make_meeting: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allreduce_run, "met_ranks", make_meeting(2).met)
    options = replace(SMALL, iterations=50, most_s=1e-9, torch_too=False)

    def act(link: Link) -> list[Any]:
        told: list[Any] = []
        work(context_of(link, told), options)
        return told

    assert [len(each.timing.seconds) for each in run_ranks(2, act)[0]] == [3, 3]


def test_the_line_of_the_first_world_serves_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[int, Line | None]] = []

    def perform(task: Task[Any, Any], show: Callable[[Any], None]) -> None:
        seen.append((task.world, task.options.line))
        if task.options.line is None:
            show(LineMeasured(LINE))
        for each in task.options.configurations:
            sent = (0,) * task.world if each.algorithm == TORCH else (1000,) * task.world
            checked = Checked(sent, 2.0, 0.0, 1.0, 0.1)
            show(Result(each, task.world, Timing((0.1, 0.2)), checked, LINE))

    monkeypatch.setattr(allreduce_run, "perform", perform)
    file = tmp_path / "a.json"
    results = run_allreduce(replace(SMALL, worlds=(2, 3), measures_line=True, json_file=file))
    assert seen == [(2, None), (3, LINE)]
    assert [each.world for each in results] == [2] * 3 + [3] * 3
    assert "6/6 3 ranks, ring quantize:8 4kB: 150ms" in capsys.readouterr().out
    record = json.loads(file.read_text())
    assert record["line"]["nbytes_per_s"] == LINE.nbytes_per_s
    assert [each["speed_up_over_torch"] for each in record["results"]] == [1.0] * 6
    assert record["options"]["worlds"] == [2, 3]


def test_ranks_that_measure_the_line_and_ranks_that_know_it_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[Task[Any, Any]] = []
    monkeypatch.setattr(allreduce_run, "is_speaker", lambda: False)
    monkeypatch.setattr(allreduce_run, "perform", lambda task, _show: tasks.append(task))
    for line in (LINE, None):
        run_allreduce(replace(SMALL, measures_line=True, line=line))
    store = HashStore()
    check_same_options(store, 0, tasks[0].shared, 5.0)
    check_same_options(store, 1, tasks[0].shared, 5.0)
    with pytest.raises(JobError, match="got measured=False on rank 1 and measured=True on rank 0"):
        check_same_options(store, 1, tasks[1].shared, 5.0)


def test_only_two_ranks_measure_the_line_and_one_knows_it(
    run_ranks: RunRanks, make_meeting: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    points, asked = (Point(1, 1e-4, 1e4, 1e4),), []

    def measure(link: Link, peer: int, _effort: object) -> tuple[Point, ...]:
        asked.append((link.rank, peer))
        return points if link.rank == 0 else ()

    meeting = make_meeting(3)
    monkeypatch.setattr(allreduce_run, "measure", measure)

    def act(link: Link) -> Line | None:
        with meeting.met(context_of(link, []), 5.0) as ranks:
            return allreduce_run._measure_line(ranks, link)

    assert run_ranks(3, act) == [fit(points), None, None]
    assert sorted(asked) == [(0, 1), (1, 0)]
