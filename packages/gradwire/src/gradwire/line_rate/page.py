"""The output of ``gradwire line-rate``: tables, a picture, and the page of its record."""

from __future__ import annotations

import io
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.machine import described_in_words, rates_in_words
from gradwire.page import Part, Picture, Report, Section, render
from gradwire.page.picture import CURVES, log_axis, panels, without_frame
from gradwire.tables import Column, Table, show
from gradwire.timing.line import SCHEMA, Line, LineRate, Point
from gradwire.units import exact_size, format_duration, format_rate, format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_POINT_COLUMNS = tuple(map(Column, ("size", "time", "one way", "both ways, each")))
_POINT_NOTE = (
    "Time: half of the median round trip of one message. One way: the median rate of a stream of messages. "
    "Both ways: the rate of each of two concurrent streams."
)
_PAIR_COLUMNS = (Column.of_text("ranks of a pair"), *map(Column, ("latency", "one way", "burst")))
_PAIR_NOTE = "Every pair's link while the other ranks are idle."


def show_line_rate(rates: dict[tuple[int, int], LineRate], link: str | None) -> None:
    """Print the first pair's link and measurements and, if there are several pairs, every pair's link."""
    first, *others = line_rate_tables(rates)
    low, high = next(iter(rates))
    title = f"link between ranks {low} and {high}, {limits(link, rates_in_words())}"
    show(title, describe_line(rates[low, high].line), "", *with_note(*first))
    for each in others:
        show("", "links of all pairs", "", *with_note(*each))


def with_note(table: Table, note: str) -> tuple[Table, str, str]:
    """Return a table, an empty line, and the note that explains its columns."""
    return table, "", note


def line_rate_tables(rates: Mapping[tuple[int, int], LineRate]) -> list[tuple[Table, str]]:
    """Return a table of the first pair's points and, if there are several pairs, a table of all pairs."""
    first = next(iter(rates.values()))
    points = []
    for point in first.points:
        speeds = format_rate(point.nbytes_per_s), format_rate(point.duplex_nbytes_per_s)
        points.append((exact_size(point.nbytes), format_duration(point.time_s), *speeds))
    pairs = []
    for (low, high), rate in rates.items():
        speeds = format_duration(rate.line.latency_s), format_rate(rate.line.nbytes_per_s)
        pairs.append((f"{low} and {high}", *speeds, format_size(rate.line.burst_nbytes)))
    tables = [(Table(_POINT_COLUMNS, points), _POINT_NOTE), (Table(_PAIR_COLUMNS, pairs), _PAIR_NOTE)]
    return tables if len(pairs) > 1 else tables[:1]


def limits(link: str | None, rates: str | None) -> str:
    """Return a link's limits as text, from the throttle's rate ``link`` and the rates of a testbed."""
    testbed = "" if rates is None else f"in a testbed of {rates}"
    throttled = f"throttled to {link}" if link else ""
    return ", ".join(filter(None, (throttled, testbed))) or "not throttled"


def limits_of(record: Mapping[str, Any]) -> str:
    """Return the limits of a record's link as text."""
    return limits(record["options"]["link"], described_in_words(record["topology"]))


def describe_line(line: Line) -> str:
    """Return a link's latency, rate and burst as text."""
    burst = f", after a burst of {format_size(line.burst_nbytes)}" if line.burst_nbytes else ""
    rate, latency = format_rate(line.nbytes_per_s), format_duration(line.latency_s)
    return f"The link: latency {latency}, {rate}{burst}."


# The picture of a link: time and bandwidth by message size.


def draw_line_rate(rate: LineRate) -> bytes:
    """Return a PNG plot of time and bandwidth by message size (as figure 7 of Iandola and others)."""
    figure = new_figure((10.5, 4.2))
    paint_line_rate(figure, rate)
    return png_of(figure)


def paint_line_rate(figure: Any, rate: LineRate) -> None:
    """Plot time and bandwidth side by side in ``figure``."""
    times, bandwidths = panels(figure, 2)
    line, points = rate.line, rate.points
    sizes, plateau = [point.nbytes for point in points], line.nbytes_per_s / 1e6
    model = f"latency {format_duration(line.latency_s)}, {format_rate(line.nbytes_per_s)}"
    times.plot(sizes, [1e6 * point.time_s for point in points], "o-", markersize=3.5, color=CURVES[0])
    times.plot(sizes, [1e6 * line.time_s(each) for each in sizes], "--", color=CURVES[7], label=model)
    times.set_ylabel("time of one message [us]")
    for label, marker, colour, rates in (
        ("one way", "o-", CURVES[0], [point.nbytes_per_s / 1e6 for point in points]),
        ("both ways, each", "s-", CURVES[1], [point.duplex_nbytes_per_s / 1e6 for point in points]),
    ):
        bandwidths.plot(sizes, rates, marker, markersize=3.5, color=colour, label=label)
    bandwidths.axhline(plateau, linestyle="--", color=CURVES[7], label=f"plateau {plateau:.4g} MB/s")
    bandwidths.set_ylabel("bandwidth [MB/s]")
    for axes in (times, bandwidths):
        log_sizes(axes, "message size [bytes]")
        axes.legend(fontsize=8, frameon=False)


def new_figure(size: tuple[float, float]) -> Any:
    """Return an empty matplotlib figure of this size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def log_sizes(axes: Any, label: str) -> None:
    """Make both axes logarithmic, with message sizes in powers of two on the x axis, labelled ``label``."""
    log_axis(axes, "x", label, base=2)
    log_axis(axes, "y", axes.get_ylabel())
    axes.grid(alpha=0.25, which="major")
    without_frame(axes)


def png_of(figure: Any) -> bytes:
    """Return a figure as PNG bytes."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def line_rate_page(record: Mapping[str, Any]) -> str:
    """Return the HTML page for a record of ``gradwire line-rate``."""
    rates = {tuple(each["ranks"]): _rate(each, record) for each in record["pairs"]}
    (first, note), *others = line_rate_tables(rates)
    (low, high), measured = next(iter(rates.items()))

    def paint(figure: Figure) -> None:
        paint_line_rate(figure, measured)

    caption = "Time of a message (dashed: predicted from latency and rate), and bandwidth, by message size."
    parts: list[Part] = [("Messages by size", first), note]
    pairs: list[Part] = [part for table, said in others for part in (("Links of all pairs", table), said)]
    sections = [Section(f"Ranks {low} and {high}", parts), Section("All pairs", pairs)]
    title = f"Link between ranks {low} and {high}, {limits_of(record)}"
    hero = Picture("line", caption, paint, 3.2, 5.6)
    return render(Report(title, describe_line(measured.line), sections, hero), record)


def _rate(pair: Mapping[str, Any], record: Mapping[str, Any]) -> LineRate:
    points = tuple(Point(**point) for point in pair["points"])
    return LineRate(Line(**pair["line"]), points, record["machine"], record["machine_id"])


PAGES = MappingProxyType({SCHEMA: line_rate_page})
"""The function that renders the page of a record, by the record's schema."""
