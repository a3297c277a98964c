from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.experiments import EXPERIMENTS, a2dtwp, perform
from gradwire.experiments.record import read_rows


def test_it_is_performed_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    assert EXPERIMENTS["a2dtwp"] is a2dtwp.EXPERIMENT
    options = a2dtwp.Options(
        systems=("power",),
        models=("resnet",),
        policies=("fp32", "awp"),
        batches=10,
        batch_size=8,
        narrower=64,
    )
    rows = perform(a2dtwp.EXPERIMENT, options, tmp_path)
    record = read_rows(tmp_path / "record.json", a2dtwp.EXPERIMENT)
    assert (record["finished"], [row["policy"] for row in record["rows"]]) == (True, ["fp32", "awp"])
    printed = capsys.readouterr().out
    assert "resnet, " in printed
    assert "on the link of power" in printed
    assert len(rows[1]["layers"]) == 1 + 16 + 1, "a residual block has one precision"
