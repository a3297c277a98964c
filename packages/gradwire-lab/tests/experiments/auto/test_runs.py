"""A training with each method: its held-out loss, and what a chosen plan sent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch._C._distributed_c10d import HashStore

from gradwire.launch.rendezvous import joined_group
from gradwire_lab.experiments import auto
from gradwire_lab.experiments.auto import runs
from gradwire_lab.experiments.auto.runs import TASKS
from support.lone_rank import Alone


def test_each_method_trains_from_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    made = TASKS["table"]
    first = made(0, 1, None, None)
    monkeypatch.setitem(TASKS, "table", lambda *words: replace(made(*words), block=8))
    methods = [*auto.METHODS, "fp8 over pairwise"]
    cells = [{"task": "table", "seed": 1, "method": method} for method in methods]
    ranks = Alone()
    with joined_group(HashStore(), 0, 1, 30.0):
        runs.measure(ranks, cells)  # type: ignore[arg-type]
    assert [row["method"] for row in ranks.rows] == methods
    losses = {row["method"]: row["loss"] for row in ranks.rows}
    assert losses["DDP"] == losses["fp8 over pairwise"] == losses["auto"]  # nothing is exchanged
    assert losses["bf16 hook"] == pytest.approx(losses["DDP"], rel=0.01)
    assert losses["DDP"] < first.held_out_loss(first.model)
    assert [row.get("plan", "") for row in ranks.rows if row["method"] != "auto"] == ["", "", "fp8 pairwise"]
    chosen = [row for row in ranks.rows if "ratio" in row]
    assert [row["raw_nbytes"] >= row["wire_nbytes"] for row in chosen] == [True, True]
    assert all(row["step_s"] > 0 and row["later_s"] > 0 for row in ranks.rows)


def test_its_names_are_those_of_the_experiment() -> None:
    assert tuple(runs.METHODS) == auto.METHODS
    assert runs.__name__ == auto.RUNS
