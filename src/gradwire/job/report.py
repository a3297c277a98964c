"""The table that ``gradwire train`` ends with."""

from __future__ import annotations

from gradwire.job.events import RunResult
from gradwire.job.options import JobOptions
from gradwire.job.record import speed_up
from gradwire.job.runs import D_SYNC, PS_SYNC
from gradwire.tables import Column, Table, show
from gradwire.testbed.current import rates_in_words

NOTE = (
    "Per step: exposed is the communication that computation does not hide, sent what all ranks send "
    "together. Ratio: bytes of floats per byte sent. The last columns are speed-ups in wall-clock training "
    "time, evaluation left out."
)
COLUMNS = (
    Column.of_text("run"),
    Column("top-1", "%"),
    Column("step", "ms"),
    Column("compute", "ms"),
    Column("codec", "ms"),
    Column("exposed", "ms"),
    Column("sent", "MB"),
    Column("ratio"),
    Column("speed", "/ PS"),
    Column("speed", "/ D"),
)


def rows(results: tuple[RunResult, ...]) -> list[tuple[str, ...]]:
    """Return a row of ``COLUMNS`` for each result."""
    return [_row(result, results) for result in results]


def show_report(options: JobOptions, results: tuple[RunResult, ...]) -> None:
    """Write the table to standard output."""
    title = f"{options.data}, {options.model}: {options.workers} workers, {link_text(options)}"
    show(f"{title}, {results[0].steps} steps", "", Table(COLUMNS, rows(results)), "", NOTE)


def link_text(options: JobOptions) -> str:
    """Return the network in words. Raises ``JobError`` for a testbed that does not describe itself."""
    rates = rates_in_words()
    if options.link:
        return f"{options.link} links" if rates is None else f"{options.link} links in a testbed of {rates}"
    return "unthrottled links" if rates is None else f"testbed links of {rates}"


def _row(result: RunResult, results: tuple[RunResult, ...]) -> tuple[str, ...]:
    return (
        result.run.label,
        f"{100 * result.accuracy:.2f}",
        _ms(result.step_s),
        _ms(result.compute_s),
        _ms(result.codec_s),
        _ms(result.exposed_s),
        f"{result.sent_nbytes / result.steps / 1e6:.2f}",
        f"{result.ratio:.1f}x",
        _times(speed_up(result, results, PS_SYNC)),
        _times(speed_up(result, results, D_SYNC)),
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def _times(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.1f}x"
