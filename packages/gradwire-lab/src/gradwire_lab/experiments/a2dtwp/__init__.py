"""Weights sent with fewer bits: the time saved until networks reach float32's error (A2DTWP).

Narrow networks show errors and bits batch by batch; batches of the full-size networks are timed on a
simulated device, whose links are as slow, relative to VGG's computation, as those of two published systems.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gradwire_lab.experiments.a2dtwp.options import (
    BATCH,
    FP32,
    LONGER,
    LONGER_SEED,
    PACE,
    TIMES_LONGER,
    TRAINING,
    A2dtwpOptions,
    cells,
)
from gradwire_lab.experiments.a2dtwp.report import plot, table
from gradwire_lab.experiments.answer import Answer
from gradwire_lab.experiments.experiment import Cell, Experiment, Reporter, Row

__all__ = ["EXPERIMENT", "A2dtwpOptions"]


# Train narrow networks, then time batches of full-size networks one after another.

Run = Callable[[A2dtwpOptions, Sequence[Cell], Sequence[Row], Reporter], None]


def run(
    options: A2dtwpOptions,
    cells: Sequence[Cell],
    before: Sequence[Row],
    report: Reporter,
    trainings: Run | None = None,
) -> None:
    """Measure the cells. ``trainings`` measures the untimed cells, by default one after another."""
    from gradwire_lab.experiments.a2dtwp.training import pace, time_batches

    trained = [cell for cell in cells if cell["kind"] in (LONGER, TRAINING)]
    if trained:
        (trainings or _in_turn)(options, trained, before, report)
    paces = [row for row in before if row["kind"] == PACE]
    for cell in cells:
        if cell["kind"] == PACE:
            paces.append({**cell, **pace(options)})
            report(paces[-1])
        elif cell["kind"] == BATCH:
            own = paces[-1]
            found = time_batches(options, cell["model"], cell["policy"], own["compute_s"], own["nbytes"])
            report({**cell, **found})


def train_cell(options: A2dtwpOptions, cell: Cell) -> dict[str, Any]:
    """Train the cell's network with the cell's policy, and return the figures."""
    from gradwire_lab.experiments.a2dtwp.training import train

    if cell["kind"] == LONGER:
        longer = replace(options, batches=TIMES_LONGER * options.batches)
        return train(longer, cell["model"], FP32, LONGER_SEED)
    return train(options, cell["model"], cell["policy"], cell["seed"])


def _in_turn(options: A2dtwpOptions, cells: Sequence[Cell], _before: Sequence[Row], report: Reporter) -> None:
    for cell in cells:
        report({**cell, **train_cell(options, cell)})


EXPERIMENT = Experiment(
    name="a2dtwp",
    question="how much time do fewer bits of weights save, at equal error?",
    answer=Answer("saved", ("policy",)),
    options=A2dtwpOptions,
    cells=cells,
    run=run,
    table=table,
    plot=plot,
    version=4,
)
