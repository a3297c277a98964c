"""Weights that travel in fewer bits: how much sooner three networks reach the error of float32.

Narrow AlexNet, VGG-A, and ResNet-34 train with the master weights on the host, to show errors and bits batch
by batch. Batches of the networks in full size are timed apart from that, on a simulated device whose links
are as slow, compared with VGG's computation, as those of two published systems.
Source: Zhuang, Malossi and Casas, "Reducing Data Motion to Accelerate the Training of Deep Neural Networks"
(A2DTWP).
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.experiments.a2dtwp.options import Options, add_arguments, cells, read
from gradwire.experiments.a2dtwp.plot import plot
from gradwire.experiments.a2dtwp.report import table
from gradwire.experiments.experiment import Cell, Experiment, Reporter, Row

__all__ = ["EXPERIMENT", "Options"]


def _run(options: Options, cells: Sequence[Cell], before: Sequence[Row], report: Reporter) -> None:
    """Train the networks, which imports torch."""
    from gradwire.experiments.a2dtwp.runs import run

    run(options, cells, before, report)


EXPERIMENT = Experiment(
    name="a2dtwp",
    question="how much time do fewer bits of weights save, at equal error?",
    add_arguments=add_arguments,
    read=read,
    cells=cells,
    run=_run,
    table=table,
    plot=plot,
    version=4,
)
