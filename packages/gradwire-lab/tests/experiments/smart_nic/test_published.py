from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gradwire_lab.experiments.experiment import select
from gradwire_lab.experiments.smart_nic.options import PAPER, SCALING, SmartNicOptions, cells, published


def test_every_cell_gets_its_row() -> None:
    rows: list[Mapping[str, Any]] = []
    wanted = cells(SmartNicOptions(parts=(PAPER,)))
    published(wanted, rows.append)
    assert all(row.items() >= cell.items() for row, cell in zip(rows, wanted, strict=True))


def test_the_curves_keep_below_ideal_and_smart_nics_above_conventional_ones() -> None:
    rows: list[Mapping[str, Any]] = []
    published(select(cells(SmartNicOptions(parts=(PAPER,))), part=SCALING), rows.append)
    for row in rows:
        assert row["baseline"] < row["nic"] <= row["nic_bfp"] * (1 + 1e-9) <= row["nodes"]
    large = [row for row in rows if row["batch"] == 1792]
    assert [row["nic"] for row in large] == pytest.approx([row["nodes"] for row in large], rel=0.02)
