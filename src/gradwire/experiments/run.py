"""Perform an experiment: measure the cells that no record holds yet, keep every row, show the table."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from gradwire.benchmark.display import Advance, progress
from gradwire.errors import JobError
from gradwire.experiments.experiment import Experiment, Options, Reporter, Row, in_order, in_words, is_row_of
from gradwire.experiments.heard import HeardWarnings
from gradwire.experiments.others import OtherPrograms
from gradwire.experiments.record import PLOT, RecordFile
from gradwire.tables import show
from gradwire.version import how_to_install


def perform(
    experiment: Experiment[Options],
    options: Options,
    out: Path | None = None,
    *,
    overwrite: bool = False,
    quiet: bool = False,
    keeps_finished: bool = False,
    across_commits: bool = False,
    expected_s: float | None = None,
    advance: Advance | None = None,
) -> list[Row]:
    """Measure an experiment and return its rows in the order of its cells.

    Parameters
    ----------
    experiment
        One of ``EXPERIMENTS``, or one of your own.
    options
        The experiment's options.
    out
        The folder of the record and the plot. If it holds an unfinished record with the same options, made on
        the same machine with the same versions, its cells aren't measured again. With None, nothing is
        written.
    overwrite
        Whether to replace an older result in ``out``, unfinished or not.
    quiet
        Whether to show neither progress nor the table.
    keeps_finished
        Whether to return the rows of a finished record in ``out``, instead of refusing to replace it.
    across_commits
        Whether to go on with a record of another commit, which then counts the rows of each.
    expected_s
        The seconds that measuring all cells should take, for the record.
    advance
        Shows progress in the place of the usual display.

    Raises
    ------
    GradwireError
        If a cell can't be measured, or ``out`` can't be written or holds another result. The record keeps the
        cells that were measured until then.
    """
    cells = experiment.cells(options)
    record = (
        None
        if out is None
        else RecordFile(
            experiment,
            options,
            out,
            overwrite,
            keeps_finished=keeps_finished,
            across_commits=across_commits,
            expected_s=expected_s,
        )
    )
    rows = [] if record is None else in_order(cells, record.rows)
    remaining = [cell for cell in cells if not any(is_row_of(cell, row) for row in rows)]
    before = tuple(rows)
    display = progress(len(cells), quiet, done=len(rows)) if advance is None else nullcontext(advance)
    with display as tell, HeardWarnings() as heard:
        others = OtherPrograms()

        def report(row: Row) -> None:
            row = others.joined(heard.joined(row))
            rows.append(row)
            if record is not None:
                record.add(row, finished=False)
            tell(len(rows), in_words(row, cells))

        try:
            if remaining:
                reporter = Reporter(report, lambda text: tell(len(rows), text))
                experiment.run(options, remaining, before, reporter)
        finally:
            if record is not None and not quiet and len(before) < len(rows) < len(cells):
                sys.stderr.write(
                    f"gradwire: {len(rows)} of {len(cells)} cells are in {record.folder}; to measure the "
                    f"others, repeat the command with --out {record.folder}\n"
                )
    rows = in_order(cells, rows)
    if len(rows) != len(cells):
        raise JobError(
            f"the experiment {experiment.name} has {len(cells)} cells, but {len(rows)} were measured"
        )
    if not quiet:
        show(*experiment.table(rows))
    if record is not None and not record.is_finished:
        plot = _plot(experiment.plot, rows, quiet)
        record.rows = rows
        record.write({} if plot is None else {PLOT: plot}, finished=True)
    return rows


def _plot(plot: Callable[[list[Row]], bytes] | None, rows: list[Row], quiet: bool) -> bytes | None:
    """Return the picture; None without one, and where matplotlib is missing."""
    if plot is None or importlib.util.find_spec("matplotlib") is not None:
        return None if plot is None else plot(rows)
    if not quiet:
        show("", f"The plot needs matplotlib, which isn't installed; {how_to_install('train')}.")
    return None
