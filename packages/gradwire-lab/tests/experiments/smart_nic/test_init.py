from __future__ import annotations

from pathlib import Path

import pytest

from gradwire_lab.experiments import EXPERIMENTS, perform, smart_nic
from gradwire_lab.experiments.record import read_rows
from gradwire_lab.experiments.smart_nic.options import PAPER


def test_the_paper_is_modelled_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert EXPERIMENTS["smart-nic"] is smart_nic.EXPERIMENT
    rows = perform(smart_nic.EXPERIMENT, smart_nic.SmartNicOptions(parts=(PAPER,)), tmp_path)
    record = read_rows(tmp_path / "record.json", smart_nic.EXPERIMENT)
    assert record["finished"]
    assert record["rows"] == rows
    printed = capsys.readouterr().out
    assert "naive, batch 1792: exposed part" in printed
    assert "Errata of the paper: " in printed
