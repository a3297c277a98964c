import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from gradwire_gateware import synthesis as targets
from gradwire_gateware.synthesis import TARGETS, synthesise


class Yosys:
    """Writes the cells that a test names."""

    def __init__(self, cells: dict[str, int]) -> None:
        self.cells = cells
        self.scripts: list[str] = []

    def run(self, arguments: Sequence[str], folder: Path) -> None:
        self.scripts.append(arguments[-1])
        assert (folder / "block.v").read_text() == "module x();"
        (folder / "cells.json").write_text(json.dumps({"design": {"num_cells_by_type": self.cells}}))


class Nextpnr:
    """Writes a report with two clocks, of which the second is slower the larger the seed."""

    def run(self, arguments: Sequence[str], folder: Path) -> None:
        words = list(arguments)
        seed = int(words[words.index("--seed") + 1])
        clocks = {"a": {"achieved": 300.0}, "b": {"achieved": [0, 90.0, 120.0, 100.0][seed]}}
        used = {"TRELLIS_COMB": {"used": 7}, "TRELLIS_FF": {"used": 5}, "DP16KD": {"used": 1}}
        (folder / words[words.index("--report") + 1]).write_text(
            json.dumps({"fmax": clocks, "utilization": used})
        )


def test_cells_of_xilinx_are_counted_with_their_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    yosys = Yosys(
        {"LUT1": 1, "LUT6": 10, "MUXF7": 9, "RAM32M": 2, "SRL16E": 3, "FDRE": 4, "FDSE": 1, "RAMB36E1": 1,
         "RAMB18E1": 1, "CARRY4": 8}
    )  # fmt: skip
    monkeypatch.setattr(targets, "YOSYS", yosys)
    found = synthesise(TARGETS["xilinx7"], "module x();", "x", tmp_path)
    assert found == {"resources": {"LUT": 22, "FF": 5, "BRAM36": 1.5, "DSP": 0}}
    assert "synth_xilinx -family xc7" in yosys.scripts[0]
    assert " -top x;" in yosys.scripts[0]


def test_the_clock_is_the_median_of_the_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(targets, "YOSYS", Yosys({}))
    monkeypatch.setattr(targets, "NEXTPNR", Nextpnr())
    assert synthesise(TARGETS["ecp5"], "module x();", "x", tmp_path) == {
        "resources": {"LUT4": 7, "FF": 5, "BRAM18": 1, "DSP": 0},
        "clock_mhz": 100.0,
        "clock_mhz_by_seed": {"1": 90.0, "2": 120.0, "3": 100.0},
    }
