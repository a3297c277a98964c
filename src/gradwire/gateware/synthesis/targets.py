"""The chips that blocks are synthesised for, and which of their cells count as what."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from gradwire.gateware.synthesis.tools import NEXTPNR, YOSYS, Tool

SEEDS = (1, 2, 3)
"""Of place and route. Its result varies by some 15 % with the seed, so that a median is reported."""
_VERILOG, _CELLS, _NETLIST = "block.v", "cells.json", "netlist.json"


class Target(NamedTuple):
    """A family of chips."""

    title: str
    synthesis: str
    """The command of Yosys, without ``-top``."""
    resources: Mapping[str, Mapping[str, float]]
    """By resource, the cells that use it, as regular expressions, and how much of it each takes."""
    is_routed: bool = False

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The programs that it wants."""
        return (YOSYS, NEXTPNR) if self.is_routed else (YOSYS,)


TARGETS = MappingProxyType(
    {
        "xilinx7": Target(
            "Xilinx 7 series",
            "synth_xilinx -family xc7 -flatten -noiopad -noclkbuf",
            {
                "LUT": {
                    "LUT[1-6]": 1, "SRL.*": 1, "RAM(32|64)X1D.*": 2, "RAM(32|64)M.*": 4, "RAM128X1D.*": 4
                },
                "FF": {"FD[RSCP]E.*": 1},
                "BRAM36": {"RAMB36E1": 1, "RAMB18E1": 0.5},
                "DSP": {"DSP48E1": 1},
            },
        ),
        "intel": Target(
            "Intel Cyclone V",
            # The chip's MLABs can have initial contents, such as zeros, but Yosys doesn't know that yet.
            "delete t:$meminit_v2; synth_intel_alm -family cyclonev -noiopad -noclkbuf",
            {
                "ALUT": {"MISTRAL_ALUT.*": 1, "MISTRAL_MLAB": 1},
                "FF": {"MISTRAL_FF": 1},
                "M10K": {"MISTRAL_M10K.*": 1},
                "DSP": {"MISTRAL_MUL.*": 1},
            },
        ),
        "ecp5": Target(
            "Lattice ECP5, LFE5U-85F, speed 6",
            f"synth_ecp5 -json {_NETLIST}",
            {
                "LUT4": {"TRELLIS_COMB": 1},
                "FF": {"TRELLIS_FF": 1},
                "BRAM18": {"DP16KD": 1},
                "DSP": {"MULT18X18D": 1},
            },
            is_routed=True,
        ),
    }
)  # fmt: skip


def synthesise(target: Target, verilog: str, top: str, folder: Path) -> dict[str, Any]:
    """Return what a block takes of a chip and, if it is routed, its clock rate by seed and their median."""
    (folder / _VERILOG).write_text(verilog, encoding="utf-8")
    script = f"read_verilog {_VERILOG}; {target.synthesis} -top {top}; tee -q -o {_CELLS} stat -json"
    YOSYS.run(["-q", "-p", script], folder)
    if not target.is_routed:
        found = json.loads((folder / _CELLS).read_text(encoding="utf-8"))
        return {"resources": _counted(target, found["design"]["num_cells_by_type"])}
    reports = [_routed(seed, folder) for seed in SEEDS]
    cells = {name: each["used"] for name, each in reports[0]["utilization"].items()}
    rates = [_clock_mhz(report) for report in reports]
    return {
        "resources": _counted(target, cells),
        "clock_mhz": statistics.median(rates),
        "clock_mhz_by_seed": dict(zip(map(str, SEEDS), rates, strict=True)),
    }


def _routed(seed: int, folder: Path) -> dict[str, Any]:
    """Return what nextpnr reports of a netlist without pins, of which wide streams have more than a chip."""
    name = f"report{seed}.json"
    chip = ("--85k", "--package", "CABGA756", "--speed", "6", "--out-of-context")
    goal = ("--freq", "100", "--timing-allow-fail", "--seed", str(seed))
    NEXTPNR.run(["--quiet", *chip, *goal, "--json", _NETLIST, "--report", name], folder)
    report: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return report


def _clock_mhz(report: dict[str, Any]) -> float:
    return min(float(each["achieved"]) for each in report["fmax"].values())


def _counted(target: Target, cells: Mapping[str, int]) -> dict[str, float]:
    return {
        name: sum(
            count * weight
            for cell, count in cells.items()
            for pattern, weight in weights.items()
            if re.fullmatch(pattern, cell)
        )
        for name, weights in target.resources.items()
    }
