"""Cells, and what measures them: trainings in processes, then batches at the pace that was measured."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire_lab.experiments import a2dtwp as runs
from gradwire_lab.experiments.a2dtwp import training
from gradwire_lab.experiments.a2dtwp import training as timing
from gradwire_lab.experiments.a2dtwp.options import A2dtwpOptions, cells
from gradwire_lab.experiments.experiment import Reporter

OPTIONS = A2dtwpOptions(
    networks=("vgg",), policies=("fp32", "awp"), seeds=(1,), timed=("resnet",), batches=10
)


def performed(before: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the rows that a run reports after these."""
    found: list[Any] = []

    def train(options: A2dtwpOptions, model: str, policy: str, seed: int) -> dict[str, Any]:
        return {"trained": (options.batches, model, policy, seed)}

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(timing, "pace", lambda _options: {"compute_s": 2.0, "nbytes": 8})
    monkeypatch.setattr(
        timing, "time_batches", lambda _options, model, policy, *pace: {"timed": (model, policy, *pace)}
    )
    remaining = [each for each in cells(OPTIONS) if not any(each.items() <= row.items() for row in before)]
    runs.run(OPTIONS, remaining, before, Reporter(found.append, lambda _text: None))
    return found


def test_longer_trainings_come_first_and_batches_at_the_measured_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = performed([], monkeypatch)
    assert [row["trained"] for row in rows if "trained" in row] == [
        (20, "vgg", "fp32", 0),
        (10, "vgg", "fp32", 1),
        (10, "vgg", "awp", 1),
    ]
    assert rows[4]["timed"] == ("resnet", "fp32", 2.0, 8)


def test_a_run_that_was_interrupted_keeps_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = performed([{"kind": "pace", "compute_s": 3.0, "nbytes": 4}], monkeypatch)
    assert {row["timed"][2:] for row in rows if "timed" in row} == {(3.0, 4)}


def test_trainings_may_be_measured_by_somebody_else() -> None:
    taken: list[Any] = []
    options = A2dtwpOptions(networks=("vgg",), policies=("fp32",), seeds=(1,), timed=())
    reporter = Reporter(taken.append, lambda _text: None)
    runs.run(
        options, cells(options), [], reporter, lambda _options, cells, _before, _report: taken.extend(cells)
    )
    assert taken == cells(options)
