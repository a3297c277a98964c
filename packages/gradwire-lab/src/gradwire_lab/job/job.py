"""A whole job, from checked options to written files."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from gradwire.errors import JobError
from gradwire.launch.launched import is_launched, launched_rank
from gradwire.machine import described_in_words
from gradwire.page import Part, Picture, Report, Section, keep, render
from gradwire.tables import Column, Table
from gradwire.units import format_duration
from gradwire_lab.job.data import Dataset, find, load
from gradwire_lab.job.equal_loss import equal_loss, too_short, verdict
from gradwire_lab.job.events import Epoch, EpochDone, Progress, RunDone, RunResult, RunStarted, StepDone
from gradwire_lab.job.launch import perform_joined, perform_local
from gradwire_lab.job.options import FILES, JobOptions, check, check_data
from gradwire_lab.job.record import SCHEMA, job_record, read_results
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
from gradwire_lab.job.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Progress while a job runs: bars on a terminal, one line an epoch elsewhere.


class Display(ABC):
    """Shows events; a context manager, since a live display must give the terminal back."""

    def __init__(self) -> None:
        self._diverged: set[Run] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, event: Progress) -> None:
        """Take note of an event; say once of every run whose loss is no longer finite that it is so."""
        self._show(event)
        if isinstance(event, EpochDone) and event.epoch.diverged and event.run not in self._diverged:
            self._diverged.add(event.run)
            self._say(
                f"{event.run.label}: the loss is no longer finite in epoch {event.epoch.epoch}, so this run "
                "learns nothing any more; try a lower --lr"
            )

    @abstractmethod
    def _show(self, event: Progress) -> None:
        """Take note of an event."""

    @abstractmethod
    def _say(self, sentence: str) -> None:
        """Print a line that stays."""


class Lines(Display):
    """One line for every epoch: for log files and pipes."""

    def __init__(self) -> None:
        from rich.console import Console

        super().__init__()
        self._console = Console(soft_wrap=True, highlight=False)
        self._epochs = 0

    def _show(self, event: Progress) -> None:
        if isinstance(event, RunStarted):
            self._epochs = event.epochs
        elif isinstance(event, EpochDone):
            epoch = event.epoch
            place = f"{event.run.label}: epoch {epoch.epoch}/{self._epochs}, step {epoch.step}"
            self._say(f"{place}, {_state(epoch)}, {epoch.train_s:.2f} s")

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, markup=False)


class Bars(Display):
    """A live bar for every run."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        super().__init__()
        self._bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}"),
        )
        self._task = self._bars.add_task("", visible=False, start=False, state="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def _show(self, event: Progress) -> None:
        if isinstance(event, RunStarted):
            self._task = self._bars.add_task(event.run.label, total=event.steps, state="")
        elif isinstance(event, StepDone):
            self._bars.update(self._task, completed=event.step)
        elif isinstance(event, EpochDone):
            self._bars.update(self._task, state=_state(event.epoch))
        elif isinstance(event, RunDone):
            self._bars.update(self._task, completed=event.result.steps)
            self._bars.stop_task(self._task)

    def _say(self, sentence: str) -> None:
        self._bars.console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def make_display() -> Display:
    """Return bars where standard output is a terminal, else lines."""
    from rich.console import Console

    return Bars() if Console().is_terminal else Lines()


def _state(epoch: Epoch) -> str:
    return (
        f"top-1 {100 * epoch.accuracy:.2f} %, loss {epoch.loss:.4f}, held-out loss {epoch.held_out_loss:.4f}"
    )


# The page of a job: the verdict, the times and bytes of each run, and how each run learned.

EVALUATIONS = (
    Column.of_text("run"),
    *map(Column, ("epoch", "step")),
    Column("training time", "s"),
    Column("training loss"),
    Column("held-out loss"),
    Column("top-1", "%"),
)
CURVES_IN, LINE_IN = 3.2, 0.4


def page_of(record: Mapping[str, Any]) -> str:
    """Return the page of a job's record."""
    options, results = record["options"], read_results(record)
    link = links_in_words(options["link"], described_in_words(record["topology"]))
    title = title_of(options["data"], options["model"], options["workers"], link)
    runs, note = table(results)
    sections = [
        Section("Runs", [("Times and bytes of each run", runs), note]),
        Section("What auto decided", _decisions(results)),
        Section("Learning", _learning(results)),
        Section("Time of a step", [_bars(results)]),
        Section("Evaluations", [("What every evaluation found", Table(EVALUATIONS, _evaluations(results)))]),
    ]
    return render(Report(title, f"{in_words(results)}.", sections), record)


def in_words(results: tuple[RunResult, ...]) -> str:
    """Return the result: the comparison with the baseline, or the accuracy and time of the fastest run."""
    short = "".join(f". {each}" for each in too_short(results))
    broken = [result.run.label for result in results if result.diverged]
    diverged = f"; {' and '.join(broken)} diverged" if broken else ""
    equal = equal_loss(results)
    if equal is not None:
        return f"{verdict(equal)}{diverged}{short}"
    well = [result for result in results if not result.diverged]
    if not well:
        return "No run has learnt: a loss was no number"
    best = min(well, key=lambda each: each.train_s)
    first = f"{best.run.label} was the fastest: it" if len(results) > 1 else best.run.label
    return (
        f"{first} has {100 * best.accuracy:.1f} % of the test set right after {best.steps} steps in "
        f"{format_duration(best.train_s)}{_saved(best)}{diverged}{short}"
    )


def _saved(result: RunResult) -> str:
    """Return how many fewer bytes a run sent, if that is any at one decimal."""
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


def _learning(results: tuple[RunResult, ...]) -> list[Part]:
    def over_time(figure: Figure) -> None:
        draw_curves(figure.subplots(), results)

    def over_steps(figure: Figure) -> None:
        draw_losses(figure.subplots(), results)

    height = CURVES_IN + 0.1 * len(results)
    return [
        Picture(
            "over-time",
            "What was learnt by the seconds of training; evaluation is left out.",
            over_time,
            height,
        ),
        Picture("over-steps", "The mean loss on rank 0 since the evaluation before.", over_steps, height),
    ]


def _bars(results: tuple[RunResult, ...]) -> Picture:
    def paint(figure: Figure) -> None:
        draw_bars(figure.subplots(), results)

    caption = "Where the time of a step goes; exposed is the communication that computation doesn't hide."
    return Picture("step-times", caption, paint, 1.2 + LINE_IN * len(results))


def _evaluations(results: tuple[RunResult, ...]) -> list[tuple[str, ...]]:
    return [
        (
            result.run.label,
            str(epoch.epoch),
            str(epoch.step),
            f"{epoch.train_s:.2f}",
            f"{epoch.loss:.4f}",
            f"{epoch.held_out_loss:.4f}",
            f"{100 * epoch.accuracy:.2f}",
        )
        for result in results
        for epoch in result.epochs
    ]


PAGES = MappingProxyType({SCHEMA: page_of})
"""The page of a record by its schema."""


def perform_job(options: JobOptions) -> Path | None:
    """Perform the job; return the folder of its files, None on ranks that keep none.

    ``options.data_folder`` is where the user says that the files are. Raises ``GradwireError``, before any
    process is started for whatever can be known by then.
    """
    check(options)
    options = replace(options, data_folder=find(options.data, options.data_folder))
    dataset = load(options.data, options.data_folder)
    check_data(options, dataset)
    if is_launched() and launched_rank()[0] > 0:
        perform_joined(options, dataset, lambda _event: None)
        return None
    results = _perform(options, dataset)
    show_report(options, results)
    sys.stdout.flush()
    _keep(options, results)
    return options.out


def _keep(options: JobOptions, results: tuple[RunResult, ...]) -> None:
    """Write the files, all or none; the table has been printed. Raises ``JobError``."""
    try:
        record, plot = (options.out / name for name in FILES)
        keep(record, job_record(options, results), page_of, {plot: draw(options, results)}, quiet=True)
    except (OSError, JobError) as error:
        raise JobError(
            f"{error}; {' and '.join(FILES)} were not written: the table above is what is left of the job"
        ) from error


def _perform(options: JobOptions, dataset: Dataset) -> tuple[RunResult, ...]:
    with make_display() as display:
        if is_launched():
            return perform_joined(options, dataset, display.show)
        return perform_local(options, display.show)
