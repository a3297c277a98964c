"""A whole job, from checking its options to writing its files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gradwire.errors import JobError
from gradwire.launch.launched import is_launched, launched_rank
from gradwire.machine import described_in_words
from gradwire.page import Part, Picture, Report, Section, keep, render
from gradwire.tables import Column, Table
from gradwire.units import format_duration
from gradwire_lab.columns import Columns, table_of
from gradwire_lab.job.data import find, load
from gradwire_lab.job.display import is_watched, make_display
from gradwire_lab.job.launch import perform_joined, perform_local
from gradwire_lab.job.options import FILES, JobOptions, check, check_data
from gradwire_lab.job.record import (
    SCHEMA,
    Epoch,
    RunResult,
    equal_loss,
    job_record,
    read_results,
    too_short,
    verdict,
)
from gradwire_lab.job.report import (
    draw,
    draw_bars,
    draw_curves,
    draw_losses,
    links_in_words,
    show_report,
    table,
    title_of,
)

# The page of a job: the verdict, the times and bytes of each run, and learning curves.

EVALUATIONS: Columns[tuple[RunResult, Epoch]] = (
    (Column.of_text("run"), lambda each: each[0].run.label),
    (Column("epoch"), lambda each: str(each[1].epoch)),
    (Column("step"), lambda each: str(each[1].step)),
    (Column("training time", "s"), lambda each: f"{each[1].train_s:.2f}"),
    (Column("training loss"), lambda each: f"{each[1].loss:.4f}"),
    (Column("held-out loss"), lambda each: f"{each[1].held_out_loss:.4f}"),
    (Column("top-1", "%"), lambda each: f"{100 * each[1].accuracy:.2f}"),
)
CURVES_IN, LINE_IN = 3.2, 0.4


def page_of(record: Mapping[str, Any]) -> str:
    """Return the HTML page of a job's record."""
    options, results = record["options"], read_results(record)
    link = links_in_words(options["link"], described_in_words(record["topology"]))
    title = title_of(options["data"], options["model"], options["workers"], link)
    runs, note = table(results)
    bars_in, curves_in = LINE_IN * len(results), CURVES_IN + 0.1 * len(results)

    def picture(
        name: str, caption: str, draw: Callable[[Any, tuple[RunResult, ...]], None], *height_in: float
    ) -> Picture:
        return Picture(name, caption, lambda figure: draw(figure.subplots(), results), *height_in)

    bars = "Parts of the step time; exposed is the communication that computation doesn't hide."
    over_steps = "Rank 0's mean loss since the previous evaluation."
    over_time = "Learning curves over training time, without evaluation."
    evaluations = table_of(EVALUATIONS, [(each, epoch) for each in results for epoch in each.epochs])
    sections = [
        Section("Runs", [("Times and bytes of each run", runs), note]),
        Section("What auto decided", _decisions(results)),
        Section("Time of a step", [picture("step-times", bars, draw_bars, 1.2 + bars_in, 1.3 + bars_in)]),
        Section(
            "Evaluations",
            [
                picture("over-steps", over_steps, draw_losses, curves_in),
                ("Loss and accuracy at each evaluation", evaluations),
            ],
        ),
    ]
    first = picture("over-time", over_time, draw_curves, curves_in)
    return render(Report(title, f"{in_words(results)}.", sections, first), record)


def in_words(results: tuple[RunResult, ...]) -> str:
    """Return the comparison with the baseline in words, or else the fastest run's accuracy and time."""
    short = "".join(f". {each}" for each in too_short(results))
    broken = [result.run.label for result in results if result.diverged]
    diverged = f"; {' and '.join(broken)} diverged" if broken else ""
    equal = equal_loss(results)
    if equal is not None:
        return f"{verdict(equal)}{diverged}{short}"
    well = [result for result in results if not result.diverged]
    if not well:
        return "All runs diverged: their losses aren't finite"
    best = min(well, key=lambda each: each.train_s)
    first = f"{best.run.label} was the fastest: it" if len(results) > 1 else best.run.label
    return (
        f"{first} reached {100 * best.accuracy:.1f} % accuracy on the test set after {best.steps} steps in "
        f"{format_duration(best.train_s)}, with {_saved(best)} on the wire{diverged}{short}"
    )


def _saved(result: RunResult) -> str:
    """Return the compression ratio in words, or "no fewer bytes" if it is 1.0 at one decimal."""
    ratio = f"{result.ratio:.1f}"
    return f"{ratio}x fewer bytes" if float(ratio) > 1 else "no fewer bytes"


def _decisions(results: tuple[RunResult, ...]) -> list[Part]:
    rows = [(result.run.label, str(step), reason) for result in results for step, reason in result.decided]
    columns = (Column.of_text("run"), Column("from step"), Column.of_text("plan, and why"))
    return [("Plans that runs have chosen", Table(columns, rows))] if rows else []


PAGES = MappingProxyType({SCHEMA: page_of})
"""The function that makes a record's page, by schema."""


def perform_job(options: JobOptions, *, quiet: bool = False, verbose: bool = False) -> Path | None:
    """Run the job, and return the folder of its files, or None on ranks that write no files.

    Raises ``GradwireError``, if possible before any process starts.
    """
    check(options)
    options = replace(options, data_folder=find(options.data, options.data_folder))
    dataset = load(options.data, options.data_folder)
    check_data(options, dataset)
    joined = is_launched()
    if joined and launched_rank()[0] > 0:
        perform_joined(options, dataset, lambda _event: None)
        return None
    with make_display(quiet) as display:
        show = display.show
        results = perform_joined(options, dataset, show) if joined else perform_local(options, show)
    if not is_watched():
        show_report(options, results, verbose)
        sys.stdout.flush()
    try:
        record, plot = (options.out / name for name in FILES)
        keep(record, job_record(options, results), page_of, {plot: draw(options, results)}, quiet=True)
    except (OSError, JobError) as error:
        raise JobError(
            f"{error}; {' and '.join(FILES)} were not written; copy the job's results from the table above"
        ) from error
    return options.out
