"""Train narrow networks, then time batches in full size, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gradwire.experiments.a2dtwp.options import (
    BATCH,
    FP32,
    LONGER,
    LONGER_SEED,
    PACE,
    TIMES_LONGER,
    TRAINING,
    Options,
)
from gradwire.experiments.experiment import Cell, Reporter, Row

Run = Callable[[Options, Sequence[Cell], Sequence[Row], Reporter], None]


def run(
    options: Options,
    cells: Sequence[Cell],
    before: Sequence[Row],
    report: Reporter,
    trainings: Run | None = None,
) -> None:
    """Measure the cells. ``trainings`` measures those without times, by default one after the other."""
    from gradwire.experiments.a2dtwp.timing import pace, time_batches

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


def train_cell(options: Options, cell: Cell) -> dict[str, Any]:
    """Return the figures of a training."""
    from gradwire.experiments.a2dtwp.training import train

    if cell["kind"] == LONGER:
        longer = replace(options, batches=TIMES_LONGER * options.batches)
        return train(longer, cell["model"], FP32, LONGER_SEED)
    return train(options, cell["model"], cell["policy"], cell["seed"])


def _in_turn(options: Options, cells: Sequence[Cell], _before: Sequence[Row], report: Reporter) -> None:
    for cell in cells:
        report({**cell, **train_cell(options, cell)})
