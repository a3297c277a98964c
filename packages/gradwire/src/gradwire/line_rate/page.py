"""The page of a line's record."""

from __future__ import annotations

import io
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.machine import described_in_words, rates_in_words
from gradwire.page import Part, Picture, Report, Section, render
from gradwire.page.picture import CURVES, without_frame
from gradwire.tables import Column, Table, show
from gradwire.timing.line import SCHEMA as LINE_RATE
from gradwire.timing.line import Line, LineRate, Point
from gradwire.units import exact_size, format_duration, format_rate, format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# The tables of a line: the first pair's points, and every pair's line.

LINE_COLUMNS = tuple(map(Column, ("size", "time", "one way", "both ways, each")))


LINE_NOTE = (
    "Time: half of the median round trip of one message. One way: the median rate of a stream of messages. "
    "Both ways: of each of two streams at once."
)


PAIR_COLUMNS = (Column.of_text("ranks of a pair"), *map(Column, ("latency", "one way", "burst")))


PAIR_NOTE = "Every pair's line while the other ranks rest."


def show_line_rate(rates: dict[tuple[int, int], LineRate], link: str | None) -> None:
    """Show the first pair's points and line, and every pair's line where there are several."""
    first, *others = line_rate_tables(rates)
    pair = next(iter(rates))
    show(
        f"line between the ranks {pair[0]} and {pair[1]}, {line_rate_report_place(link)}",
        "",
        *with_note(*first),
    )
    for each in others:
        show("", "lines of all pairs", "", *with_note(*each))


def with_note(table: Table, note: str) -> tuple[Table, str, str]:
    """Return a table, an empty line, and what its columns mean."""
    return table, "", note


def line_rate_tables(rates: Mapping[tuple[int, int], LineRate]) -> list[tuple[Table, str]]:
    """Return a table of the first pair's points, and one of all pairs where there are several."""
    first, *others = rates.values()
    rows = [
        (
            exact_size(point.nbytes),
            format_duration(point.time_s),
            format_rate(point.nbytes_per_s),
            format_rate(point.duplex_nbytes_per_s),
        )
        for point in first.points
    ]
    tables = [(Table(LINE_COLUMNS, rows), f"{LINE_NOTE} {describe_line(first.line)}")]
    if others:
        tables.append((Table(PAIR_COLUMNS, [_pair_row(*item) for item in rates.items()]), PAIR_NOTE))
    return tables


def line_rate_report_place(link: str | None) -> str:
    """Return what limits the line here, in words."""
    return limits(link, rates_in_words())


def limits(link: str | None, rates: str | None) -> str:
    """Return in words what limits a line: a throttle, and the rates of a testbed."""
    testbed = "" if rates is None else f"in a testbed of {rates}"
    throttled = f"throttled to {link}" if link else ""
    return ", ".join(filter(None, (throttled, testbed))) or "not throttled"


def describe_line(line: Line) -> str:
    """Return a line in words."""
    burst = f", after a burst of {format_size(line.burst_nbytes)}" if line.burst_nbytes else ""
    rate, latency = format_rate(line.nbytes_per_s), format_duration(line.latency_s)
    return f"The line: latency {latency}, {rate}{burst}."


def _pair_row(pair: tuple[int, int], rate: LineRate) -> tuple[str, ...]:
    line = rate.line
    return (
        f"{pair[0]} and {pair[1]}",
        format_duration(line.latency_s),
        format_rate(line.nbytes_per_s),
        format_size(line.burst_nbytes),
    )


# The picture of a line: time and bandwidth by message size.


def draw_line_rate(rate: LineRate) -> bytes:
    """Return time and bandwidth against message size, both axes logarithmic.

    Source: Iandola and others, a measurement study, figure 7.
    """
    figure = new_figure((10.5, 4.2))
    paint_line_rate(figure, rate)
    return png_of(figure)


def paint_line_rate(figure: Any, rate: LineRate) -> None:
    """Paint time and bandwidth side by side."""
    times, bandwidths = figure.subplots(1, 2)
    line, sizes = rate.line, [point.nbytes for point in rate.points]
    times.plot(sizes, [1e6 * point.time_s for point in rate.points], "o-", markersize=3.5, color=CURVES[0])
    model = [1e6 * line.time_s(nbytes) for nbytes in sizes]
    times.plot(
        sizes,
        model,
        "--",
        color=CURVES[7],
        label=f"latency {format_duration(line.latency_s)}, {format_rate(line.nbytes_per_s)}",
    )
    times.set_ylabel("time of one message [us]")
    for label, marker, colour, values in (
        ("one way", "o-", CURVES[0], [point.nbytes_per_s for point in rate.points]),
        ("each of both ways at once", "s-", CURVES[1], [point.duplex_nbytes_per_s for point in rate.points]),
    ):
        bandwidths.plot(
            sizes, [value / 1e6 for value in values], marker, markersize=3.5, color=colour, label=label
        )
    plateau = line.nbytes_per_s / 1e6
    bandwidths.axhline(plateau, linestyle="--", color=CURVES[7], label=f"plateau {plateau:.4g} MB/s")
    bandwidths.set_ylabel("bandwidth [MB/s]")
    for axes in (times, bandwidths):
        log_sizes(axes, "message size [bytes]")
        axes.legend(fontsize=8, frameon=False)


def new_figure(size: tuple[float, float]) -> Any:
    """Return an empty figure of matplotlib, of this size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def log_sizes(axes: Any, label: str) -> None:
    """Let an axis show message sizes by powers of two."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(label)
    axes.grid(alpha=0.25, which="major")
    without_frame(axes)


def png_of(figure: Any) -> bytes:
    """Return a figure as PNG."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def line_rate_page(record: Mapping[str, Any]) -> str:
    """Return the page of the record of ``gradwire line-rate``."""
    rates = {tuple(each["ranks"]): _rate(each, record) for each in record["pairs"]}
    (first, note), *others = line_rate_tables(rates)
    measured = next(iter(rates.values()))

    def paint(figure: Figure) -> None:
        paint_line_rate(figure, measured)

    pair = " and ".join(map(str, next(iter(rates))))
    caption = (
        "Left: the time of one message, and what the line's latency and rate make of it. Right: bandwidths."
    )
    pairs: list[Part] = [part for table, said in others for part in (("Lines of all pairs", table), said)]
    sections = [
        Section(f"Ranks {pair}", [("Messages by size", first), note, Picture("line", caption, paint, 3.2)]),
        Section("All pairs", pairs),
    ]
    title = f"Line between the ranks {pair}, {place(record)}"
    return render(Report(title, describe_line(measured.line), sections), record)


def _rate(pair: Mapping[str, Any], record: Mapping[str, Any]) -> LineRate:
    points = tuple(Point(**point) for point in pair["points"])
    return LineRate(Line(**pair["line"]), points, record["machine"], record["machine_id"])


def place(record: Mapping[str, Any]) -> str:
    """Return where a line was measured, in words."""
    return limits(record["options"]["link"], described_in_words(record["topology"]))


PAGES = MappingProxyType({LINE_RATE: line_rate_page})
"""The page of the record, by its schema."""
