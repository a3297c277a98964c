"""The table that ``gradwire train`` ends with."""

from __future__ import annotations

import sys

from gradwire.job.equal_loss import LAST, MODEL, EqualLoss, equal_loss, prediction, too_short, verdict
from gradwire.job.events import RunResult
from gradwire.job.options import JobOptions
from gradwire.job.record import speed_up
from gradwire.job.runs import D_SYNC, DDP, PS_SYNC, Run
from gradwire.tables import Column, Table, show
from gradwire.testbed.current import rates_in_words

NOTE = (
    "Per step: exposed is the communication that computation does not hide, wire what all ranks send "
    "together, headers included. Ratio: bytes of floats per byte on the wire."
)
SPEEDS = "The last columns are speed-ups in wall-clock training time, evaluation left out."
_SHORT = {PS_SYNC: "PS", D_SYNC: "D", DDP: "DDP"}
"""The baselines of speeds, and their names in columns."""
COLUMNS = (
    Column.of_text("run"),
    Column("top-1", "%"),
    Column("step", "ms"),
    Column("compute", "ms"),
    Column("codec", "ms"),
    Column("exposed", "ms"),
    Column("wire", "MB"),
    Column("ratio"),
)


def columns(results: tuple[RunResult, ...]) -> tuple[Column, ...]:
    """Return the columns: the last ones are times to equal loss, or speeds over the baselines that ran."""
    equal = _judged(results)
    if equal is None:
        return *COLUMNS, *(Column("speed", f"/ {_SHORT[run]}") for run in _bases(results))
    return *COLUMNS, Column("to loss", "s"), Column("speed", f"/ {_SHORT[equal.baseline.run]}")


def rows(results: tuple[RunResult, ...]) -> list[tuple[str, ...]]:
    """Return a row of ``columns`` for each result."""
    equal = _judged(results)
    return [(*_row(result), *_compared(result, results, equal)) for result in results]


def show_report(options: JobOptions, results: tuple[RunResult, ...]) -> None:
    """Write the table to standard output."""
    title = title_of(options.data, options.model, options.workers, link_text(options))
    show(f"{title}, {results[0].steps} steps", "", *table(results)[:1], "", table(results)[1])
    equal = _judged(results)
    for result in results:
        for step, reason in result.decided:
            show("", f"{result.run.label}: from step {step} on, {reason}")
    if equal is not None:
        show("", f"{verdict(equal)}. For your model, say of {MODEL} parameters:")
        rate = options.link or rates_in_words() or "1gbit"
        sys.stdout.write(f"  {prediction(max(2, options.workers), rate)}\n")  # whole, to be copied


def table(results: tuple[RunResult, ...]) -> tuple[Table, str]:
    """Return a table of all runs, and what its columns mean."""
    equal = _judged(results)
    said = _explain(equal) if equal is not None else SPEEDS if _bases(results) else ""
    note = " ".join([NOTE, *filter(None, (said, *(f"{each}." for each in too_short(results))))])
    return Table(columns(results), rows(results)), note


def title_of(data: str, model: str, workers: int, link: str) -> str:
    """Return what was trained, and where."""
    return f"{data}, {model}: {workers} workers, {link}"


def link_text(options: JobOptions) -> str:
    """Return the network in words. Raises ``JobError`` for a testbed that does not describe itself."""
    return links_in_words(options.link, rates_in_words())


def links_in_words(link: str | None, rates: str | None) -> str:
    """Return in words what paces each rank, and the rates of the testbed."""
    if link:
        return f"{link} links" if rates is None else f"{link} links in a testbed of {rates}"
    return "unthrottled links" if rates is None else f"testbed links of {rates}"


def _judged(results: tuple[RunResult, ...]) -> EqualLoss | None:
    """Return the times to equal loss, where the table has room for them."""
    return None if any(result.run == PS_SYNC for result in results) else equal_loss(results)


def _explain(equal: EqualLoss) -> str:
    return (
        f"To loss: seconds of training until the held-out loss is {equal.target:.4f}, the median of the last "
        f"{LAST} evaluations of {equal.baseline.run.label}; between evaluations on straight lines; -: never. "
        "Speed: how many times less time that is."
    )


def _bases(results: tuple[RunResult, ...]) -> list[Run]:
    """Return the baselines among the runs of a comparison, two at most."""
    runs = [result.run for result in results]
    return [run for run in _SHORT if run in runs and len(runs) > 1][:2]


def _compared(result: RunResult, results: tuple[RunResult, ...], equal: EqualLoss | None) -> tuple[str, ...]:
    if equal is None:
        return tuple(_times(speed_up(result, results, run)) for run in _bases(results))
    seconds = equal.seconds(result.run)
    return "-" if seconds is None else f"{seconds:.2f}", _times(equal.gain(result.run))


def _row(result: RunResult) -> tuple[str, ...]:
    return (
        result.run.label,
        f"{100 * result.accuracy:.2f}",
        _ms(result.step_s),
        _ms(result.compute_s),
        _ms(result.codec_s),
        _ms(result.exposed_s),
        f"{result.wire_nbytes / result.steps / 1e6:.2f}",
        f"{result.ratio:.1f}x",
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def _times(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.1f}x"
