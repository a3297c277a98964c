"""The rows of the model: its constants, the published figures, and the curves of figure 4b."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from gradwire.experiments.experiment import Cell, Report
from gradwire.experiments.smart_nic.options import CONSTANT, FIGURE
from gradwire.timing.closed_form.smart_nic_figures import constants, figures, throughput
from gradwire.timing.closed_form.smart_nic_prototype import LARGE, SMALL, Prototype, calibrate

BASELINE, NIC, NIC_BFP = "baseline", "nic", "nic_bfp"
"""The three curves: throughput over that of one node."""


def published(cells: Sequence[Cell], report: Report) -> None:
    """Report the rows of these cells."""
    prototype = calibrate()
    known = {
        (kind, each.what): asdict(each)
        for kind, found in ((CONSTANT, constants(prototype)), (FIGURE, figures(prototype)))
        for each in found
    }
    for cell in cells:
        values = known[cell["part"], cell["what"]] if "what" in cell else _throughputs(prototype, cell)
        report({**cell, **values})


def _throughputs(prototype: Prototype, cell: Cell) -> dict[str, float]:
    mlp = next(each for each in (SMALL, LARGE) if each.batch == cell["batch"])
    nics = {BASELINE: None, NIC: prototype.uncompressed, NIC_BFP: prototype.bfp}
    return {name: throughput(prototype, mlp, nic, cell["nodes"]) for name, nic in nics.items()}
