"""An all-reduce in the NIC: a simulated circuit, a model, and a testbed, compared with published figures.

The cycles of the simulated gateware ring are compared with the model, the model's figures with the paper, and
training steps on a testbed with the predictions of the same model, calibrated on a different configuration.
Source: Ma and others, FPGA-based AI smart NICs (arXiv 2204.10943).
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwire_lab.experiments.experiment import Cell, Experiment, Reporter, Row, select
from gradwire_lab.experiments.hosts import measure_cells
from gradwire_lab.experiments.smart_nic.options import (
    CALIBRATION,
    RING,
    STEP,
    SmartNicOptions,
    cells,
    published,
)
from gradwire_lab.experiments.smart_nic.report import plot, table

__all__ = ["EXPERIMENT", "SmartNicOptions"]

STEPS = "gradwire_lab.experiments.smart_nic.steps"
"""The name of the module that runs steps on the hosts, which imports torch."""


def _run(_options: SmartNicOptions, cells: Sequence[Cell], _before: Sequence[Row], report: Reporter) -> None:
    """Compute the model's rows, simulate the rings, and measure the steps."""
    published([cell for cell in cells if cell["part"] not in (RING, CALIBRATION, STEP)], report)
    rings = select(cells, part=RING)
    if rings:
        from gradwire_lab.experiments.smart_nic.rings import simulate  # imports amaranth

        simulate(rings, report)
    measure_cells(STEPS, [cell for cell in cells if cell["part"] in (CALIBRATION, STEP)], report)


EXPERIMENT = Experiment(
    name="smart-nic",
    question="what does an all-reduce in the NIC save, as published?",
    options=SmartNicOptions,
    cells=cells,
    run=_run,
    table=table,
    plot=plot,
    version=2,
)
