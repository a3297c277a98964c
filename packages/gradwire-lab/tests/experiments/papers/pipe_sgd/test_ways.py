"""Cells get hosts and rates; figures come from the rows by what they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from gradwire_lab.experiments.experiment import Reporter
from gradwire_lab.experiments.learning import GOALS
from gradwire_lab.experiments.papers.pipe_sgd import ways
from gradwire_lab.experiments.papers.pipe_sgd.ways import (
    LINE,
    PLAIN,
    TIME,
    TRAIN,
    WAYS,
    MeasuredWays,
    on_hosts,
)


@dataclass(frozen=True)
class Options:
    steps: int = 3


CELLS: list[dict[str, Any]] = [
    {"kind": PLAIN},
    {"kind": TRAIN, "run": "PS-Sync", "seed": 0},
    {"kind": LINE, "ratio": 0.5, "codec": "identity"},
    {"kind": TIME, "ratio": 0.5, "run": "D-Sync"},
    {"kind": TIME, "ratio": 0.5, "run": "PS-Sync"},
]


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """Return the cells that reach the hosts, whose plain step takes 40 ms and has a gradient of 2 MB."""
    found: list[Mapping[str, Any]] = []

    def measure(
        module: str, cells: Sequence[Mapping[str, Any]], report: Callable[[Any], None], more: Any, _: object
    ) -> None:
        assert module == "gradwire_lab.experiments.papers.pipe_sgd.trainer"
        assert more == {"task": "a task", "options": {"steps": 3}}
        for cell in cells:
            found.append(cell)
            report({**cell, "steps_s": [0.04], "nbytes": 2_000_000})

    monkeypatch.setattr(ways, "measure_cells", measure)
    return found


def test_a_rate_follows_from_the_plain_step_and_the_bytes(placed: list[Mapping[str, Any]]) -> None:
    rows: list[Any] = []
    on_hosts("a task", 4)(Options(), CELLS, (), Reporter(rows.append, lambda _: None))
    # A ring of four sends 3 MB, which take half of 40 ms: 150 MB/s. A server is one more host.
    assert [(cell["hosts"], cell["rate"]) for cell in placed] == [
        (4, "unlimited"),
        (5, "unlimited"),
        (4, "1200mbit"),
        (4, "1200mbit"),
        (5, "1200mbit"),
    ]
    assert [row["kind"] for row in rows] == [cell["kind"] for cell in CELLS]


def test_a_run_goes_on_with_the_plain_step_that_was_measured(placed: list[Mapping[str, Any]]) -> None:
    before: list[dict[str, Any]] = [{"kind": PLAIN, "steps_s": [0.01, 0.02, 0.09], "nbytes": 2_000_000}]
    on_hosts("a task", 4)(Options(), CELLS[3:4], before, Reporter(lambda _: None, lambda _: None))
    assert [cell["rate"] for cell in placed] == ["2400mbit"]


def test_figures_come_from_the_rows_by_what_they_are() -> None:
    rows: list[dict[str, Any]] = [
        {"kind": PLAIN, "steps_s": [1.0, 3.0, 2.0]},
        {"kind": TRAIN, "run": "D-Sync", "momentum": 0.9, "accuracy": 0.9},
        {"kind": TRAIN, "run": "D-Sync", "momentum": 0.0, "accuracy": 0.8},
        {"kind": TRAIN, "run": "Pipe-SGD", "momentum": 0.9, "accuracy": 0.1},
        {"kind": LINE, "ratio": 0.3, "codec": "identity", "exchange_s": [0.6]},
        {"kind": LINE, "ratio": 0.3, "codec": "truncate:16", "exchange_s": [0.3]},
        {"kind": LINE, "ratio": 3.0, "codec": "identity", "exchange_s": [6.0]},
        {"kind": TIME, "run": "D-Sync", "ratio": 3.0, "steps_s": [8.0, 9.0, 7.0]},
    ]
    measured = MeasuredWays(rows, GOALS["mnist"])
    assert measured.ratios == [0.3, 3.0]
    assert measured.plain_s == 2.0
    assert measured.exchange_s(0.3, "truncate:16") == 0.3
    assert measured.overlapped_s(0.3) == 0.6
    assert measured.overlapped_s(3.0) == 2.0
    assert measured.step_s("D-Sync", 3.0) == 8.0
    assert measured.accuracies("D-Sync", momentum=0.0) == [0.8]
    (stale,) = measured.trainings("D-Sync", "Pipe-SGD", expected_failure="declared", momentum=0.9)
    assert (stale.accuracies, stale.exact, stale.expected_failure) == ([0.1], [0.9], "declared")
    assert stale.problem


def test_ways_are_the_paper_s_and_the_eager_ones() -> None:
    assert [name for name, way in WAYS.items() if way.has_server] == ["PS-Sync"]
    assert {way.correction for name, way in WAYS.items() if name.startswith("Pipe")} == {"none"}
    assert {way.correction for name, way in WAYS.items() if name.startswith("eager")} == {"eager"}
    assert [WAYS[f"K = {number}"].pipeline for number in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert WAYS["Pipe-SGD+Q"].codec == WAYS["D-Sync+Q"].codec == "quantize:8"
