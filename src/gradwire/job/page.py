"""The page of a job: who reached the loss sooner, each run's times and bytes, and what was learnt when."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.job.equal_loss import equal_loss, too_short, verdict
from gradwire.job.events import RunResult
from gradwire.job.plot import draw_bars, draw_curves, draw_losses
from gradwire.job.record import SCHEMA, read_results
from gradwire.job.report import links_in_words, table, title_of
from gradwire.page import Part, Picture, Report, Section, report_page
from gradwire.tables import Column, Table
from gradwire.testbed.current import described_in_words
from gradwire.units import format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    sections: list[Section] = [
        ("Runs", [("Times and bytes of each run", runs), note]),
        ("What auto decided", _decisions(results)),
        ("Learning", _learning(results)),
        ("Time of a step", [_bars(results)]),
        ("Evaluations", [("What every evaluation found", Table(EVALUATIONS, _evaluations(results)))]),
    ]
    return report_page(Report(title, f"{in_words(results)}.", sections), record)


def in_words(results: tuple[RunResult, ...]) -> str:
    """Return what came of the runs: the comparison, or what the best of them has learnt, and when."""
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
