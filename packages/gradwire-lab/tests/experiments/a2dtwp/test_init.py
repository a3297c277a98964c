from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gradwire_lab.experiments import EXPERIMENTS, a2dtwp, perform
from gradwire_lab.experiments.record import read_rows
from support.offloaded_rows import batch, longer, training


def test_it_is_performed_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert EXPERIMENTS["a2dtwp"] is a2dtwp.EXPERIMENT
    errors = [0.8, 0.8, 0.5, 0.5, 0.5, 0.5, 0.5]
    made = [longer(), training("fp32", errors), training("awp", errors), {"kind": "pace"}]

    def run(_options: object, cells: list[dict[str, str]], _before: object, report: object) -> None:
        for cell in cells:
            report(
                next((row for row in made if cell.items() <= row.items()), None)
                or {**batch(cell["policy"], 1.0), **cell}
            )  # type: ignore[operator]

    options = a2dtwp.A2dtwpOptions(networks=("vgg",), policies=("fp32", "awp"), seeds=(1,), timed=("vgg",))
    perform(dataclasses.replace(a2dtwp.EXPERIMENT, run=run), options, tmp_path)  # type: ignore[arg-type]
    record = read_rows(tmp_path / "record.json", a2dtwp.EXPERIMENT)
    assert record["finished"]
    assert [row["kind"] for row in record["rows"]][:4] == ["longer", "training", "training", "pace"]
    assert "vgg on cifar10" in capsys.readouterr().out
