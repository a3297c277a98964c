"""A whole job, from checking its options to writing its files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.errors import JobError
from gradwire.launch.launched import is_launched, launched_rank
from gradwire.machine import described_in_words
from gradwire.page import Part, Picture, Report, Section, keep, render
from gradwire.tables import Column, Table
from gradwire.units import format_duration
from gradwire_lab.columns import Columns, table_of
from gradwire_lab.job.data import Dataset, find, load
from gradwire_lab.job.display import make_display
from gradwire_lab.job.events import is_watched
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    over_time, over_steps = _learning(results)
    sections = [
        Section("Runs", [("Times and bytes of each run", runs), note]),
        Section("What auto decided", _decisions(results)),
        Section("Time of a step", [_bars(results)]),
        Section(
            "Evaluations",
            [over_steps, ("Loss and accuracy at each evaluation", _evaluations(results))],
        ),
    ]
    return render(Report(title, f"{in_words(results)}.", sections, over_time), record)


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
        f"{format_duration(best.train_s)}{_saved(best)}{diverged}{short}"
    )


def _saved(result: RunResult) -> str:
    """Return the compression ratio in words, or "no fewer bytes" if it is 1.0 at one decimal."""
    ratio = f"{result.ratio:.1f}"
    return (
        f", with {ratio}x fewer bytes on the wire"
        if float(ratio) > 1
        else ", with no fewer bytes on the wire"
    )


def _decisions(results: tuple[RunResult, ...]) -> list[Part]:
    rows = [(result.run.label, str(step), reason) for result in results for step, reason in result.decided]
    columns = (Column.of_text("run"), Column("from step"), Column.of_text("plan, and why"))
    return [("Plans that runs have chosen", Table(columns, rows))] if rows else []


def _learning(results: tuple[RunResult, ...]) -> tuple[Picture, Picture]:
    """Return the learning curves over time, which show the verdict, and the learning curves over steps."""

    def over_time(figure: Figure) -> None:
        draw_curves(figure.subplots(), results)

    def over_steps(figure: Figure) -> None:
        draw_losses(figure.subplots(), results)

    height = CURVES_IN + 0.1 * len(results)
    caption = "Learning curves over training time, without evaluation."
    over_steps_caption = "Rank 0's mean loss since the previous evaluation."
    return (
        Picture("over-time", caption, over_time, height),
        Picture("over-steps", over_steps_caption, over_steps, height),
    )


def _bars(results: tuple[RunResult, ...]) -> Picture:
    def paint(figure: Figure) -> None:
        draw_bars(figure.subplots(), results)

    caption = "Parts of the step time; exposed is the communication that computation doesn't hide."
    return Picture("step-times", caption, paint, 1.2 + LINE_IN * len(results), 1.3 + LINE_IN * len(results))


def _evaluations(results: tuple[RunResult, ...]) -> Table:
    return table_of(EVALUATIONS, [(result, epoch) for result in results for epoch in result.epochs])


PAGES = MappingProxyType({SCHEMA: page_of})
"""The function that makes a record's page, by schema."""


def perform_job(options: JobOptions, *, quiet: bool = False, verbose: bool = False) -> Path | None:
    """Run the job, and return the folder of its files, or None on ranks that write no files.

    ``options.data_folder`` is the folder that the user passed, if any; ``quiet`` hides the progress. With
    ``verbose``, the report has the reasons of all choices. Raises ``GradwireError``, if possible before any
    process starts.
    """
    check(options)
    options = replace(options, data_folder=find(options.data, options.data_folder))
    dataset = load(options.data, options.data_folder)
    check_data(options, dataset)
    if is_launched() and launched_rank()[0] > 0:
        perform_joined(options, dataset, lambda _event: None)
        return None
    results = _perform(options, dataset, quiet)
    if not is_watched():
        show_report(options, results, verbose)
        sys.stdout.flush()
    _keep(options, results)
    return options.out


def _keep(options: JobOptions, results: tuple[RunResult, ...]) -> None:
    """Write all files of the job, or none, after printing the job's table. Raises ``JobError``."""
    try:
        record, plot = (options.out / name for name in FILES)
        keep(record, job_record(options, results), page_of, {plot: draw(options, results)}, quiet=True)
    except (OSError, JobError) as error:
        raise JobError(
            f"{error}; {' and '.join(FILES)} were not written; copy the job's results from the table above"
        ) from error


def _perform(options: JobOptions, dataset: Dataset, quiet: bool) -> tuple[RunResult, ...]:
    with make_display(quiet) as display:
        if is_launched():
            return perform_joined(options, dataset, display.show)
        return perform_local(options, display.show)
