"""Tables, plots, and the page of an all-reduce benchmark's record."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.line_rate.page import describe_line, limits, limits_of, log_sizes, new_figure, png_of, with_note
from gradwire.machine import rates_in_words
from gradwire.page import Picture, Report, Section, render
from gradwire.page.picture import CURVES, bar_height, is_narrow, name_bars, panels, without_frame
from gradwire.plan import Plan
from gradwire.tables import Column, Table, figure, show
from gradwire.timing.line import Line
from gradwire.units import exact_size, format_duration
from gradwire_lab.benchmark.allreduce import SCHEMA, TORCH, Result, read_result, torch_times
from gradwire_lab.columns import Columns, table_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REDUCE_COLUMNS: Columns[Result] = (
    (Column.of_text("algorithm"), lambda each: f"{each.configuration.algorithm}{_segment(each)}"),
    (Column.of_text("codec"), lambda each: each.configuration.codec),
    (Column("ranks"), lambda each: str(each.world)),
    (Column("size"), lambda each: exact_size(each.configuration.nbytes)),
    (Column("p50", "ms"), lambda each: figure(1e3 * each.timing.p50_s)),
    (Column("p99", "ms"), lambda each: figure(1e3 * each.timing.p99_s)),
    (Column("algbw", "GB/s"), lambda each: figure(each.algbw_nbytes_per_s / 1e9)),
    (Column("busbw", "GB/s"), lambda each: figure(each.busbw_nbytes_per_s / 1e9)),
    (Column("best", "%"), lambda each: _best(each.share_of_best)),
    (
        Column("wire", "MB"),
        lambda each: figure(max(each.checked.wire_nbytes) / 1e6) if _is_counted(each) else "-",
    ),
    (Column("ratio"), lambda each: f"{each.checked.ratio:.2f}" if _is_counted(each) else "-"),
)
REDUCE_NOTE = (
    "Times are those of the slowest rank. Bandwidths count bytes of float32: algbw = size / p50, busbw = "
    "algbw 2 (p - 1) / p. Best: the theoretical minimum time as a share of p50. Wire: bytes sent by the "
    "busiest rank, with headers. Ratio: bytes of floats per byte on the wire. Every sum was compared with "
    "the exact sum, and every rank's bits with the other ranks' bits."
)


def show_allreduce(results: list[Result], line: Line | None, data: str, link: str | None) -> None:
    """Print the fastest configuration, and a table with a row for every configuration."""
    title = f"all-reduce of {data}, {limits(link, rates_in_words())}"
    show(title, f"{fastest(results)}.", "", *with_note(*allreduce_table(results, line)))


def allreduce_table(results: list[Result], line: Line | None) -> tuple[Table, str]:
    """Return a table with a row for every configuration, and a note that explains its columns."""
    torchs = torch_times(results)

    def over_torch(each: Result) -> str:
        torch_s = torchs.get((each.world, each.configuration.nbytes))
        return "-" if torch_s is None else f"{torch_s / each.timing.p50_s:.2f}x"

    note = REDUCE_NOTE if line is None else f"{REDUCE_NOTE} {describe_line(line)}"
    return table_of([*REDUCE_COLUMNS, (Column("speed", "/torch"), over_torch)], results), note


def _best(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}"


def _is_counted(result: Result) -> bool:
    """Return whether the number of sent bytes is known; torch's all-reduce doesn't report it."""
    return any(result.checked.wire_nbytes)


def _segment(result: Result) -> str:
    """Return the suffix of a name for a segment size other than the default, else an empty string."""
    segment = result.configuration.segment_nbytes
    return "" if segment == Plan.segment_nbytes else f" /{exact_size(segment)}"


def allreduce_page(record: Mapping[str, Any]) -> str:
    """Return the page of the record of ``gradwire bench allreduce``."""
    line = None if record["line"] is None else Line(**record["line"])
    results = [read_result(row, line) for row in record["results"]]
    table, note = allreduce_table(results, line)

    def paint(figure: Figure) -> None:
        paint_allreduce(figure, results)

    _, height_in = size_of(results)
    worlds = len({result.world for result in results})
    hero = Picture(
        "medians",
        "Median times; crosses are theoretical minimum times.",
        paint,
        height_in,
        height_in * worlds if _has_sizes(results) else 1.25 * height_in * worlds,
    )
    sections = [Section("All-reduces", [("Time and bytes of each configuration", table), note])]
    title = f"All-reduce of {record['options']['data']}, {limits_of(record)}"
    return render(Report(title, f"{fastest(results)}.", sections, hero), record)


def fastest(results: list[Result]) -> str:
    """Return a sentence on the fastest configuration for the most ranks and the largest size."""
    world = max(result.world for result in results)
    largest = max(result.configuration.nbytes for result in results if result.world == world)
    own = [it for it in results if (it.world, it.configuration.nbytes) == (world, largest)]
    best = min(own, key=lambda each: each.timing.p50_s)
    name = best.configuration
    codec = "" if name.algorithm == TORCH else f" with {name.codec}"
    said = (
        f"{name.algorithm}{codec} is the fastest for {exact_size(largest)} on {world} ranks: "
        f"{format_duration(best.timing.p50_s)}"
    )
    torch_s = torch_times(results).get((world, largest))
    if torch_s is None or name.algorithm == TORCH:
        return said
    return f"{said}, {torch_s / best.timing.p50_s:.2f}x as fast as PyTorch's own"


# Plots of benchmarks, as PNG files in memory.

STYLES = ("-", "--", ":")


def draw_allreduce(results: list[Result]) -> bytes:
    """Return a plot of median times, and of theoretical minimum times as crosses, by number of ranks."""
    figure = new_figure(size_of(results))
    paint_allreduce(figure, results)
    return png_of(figure)


def size_of(results: list[Result]) -> tuple[float, float]:
    """Return the plot's width and height in inches, from the numbers of its panels and bars."""
    worlds = {result.world for result in results}
    names = {_name(result) for result in results}
    return max(8.0, 2.0 + 4.5 * len(worlds)), 4.2 if _has_sizes(results) else 1.6 + 0.32 * len(names)


def _has_sizes(results: list[Result]) -> bool:
    return len({result.configuration.nbytes for result in results}) > 1


def paint_allreduce(figure: Any, results: list[Result]) -> None:
    """Draw a panel for each number of ranks."""
    worlds = sorted({result.world for result in results})
    several = _has_sizes(results)
    names = list(dict.fromkeys(_name(result) for result in results))
    every = panels(figure, len(worlds), share_y=True)
    for axes, world in zip(every, worlds, strict=True):
        (_draw_curves if several else _draw_bars)(axes, [it for it in results if it.world == world], names)
        axes.set_title(f"{world} ranks", fontsize=10)
        without_frame(axes)
    if several and is_narrow(figure):
        figure.legend(
            *every[-1].get_legend_handles_labels(), fontsize=8, frameon=False, loc="outside lower left"
        )
    elif several:
        every[-1].legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _name(result: Result) -> str:
    configuration = result.configuration
    if configuration.algorithm == TORCH:
        return TORCH
    return f"{configuration.algorithm} {configuration.codec}{_segment(result)}"


def _draw_curves(axes: Any, results: list[Result], names: list[str]) -> None:
    for number, name in enumerate(names):
        own = sorted((it for it in results if _name(it) == name), key=lambda it: it.configuration.nbytes)
        sizes = [it.configuration.nbytes for it in own]
        style = {
            "color": CURVES[number % len(CURVES)],
            "linestyle": STYLES[number // len(CURVES) % len(STYLES)],
        }
        axes.plot(sizes, [1e3 * it.timing.p50_s for it in own], "o", markersize=3.5, label=name, **style)
        best = [(size, 1e3 * it.best_s) for size, it in zip(sizes, own, strict=True) if it.best_s is not None]
        if best:
            axes.plot(*zip(*best, strict=True), "x", markersize=4, color=style["color"])
    axes.set_ylabel("time of an all-reduce [ms]")
    log_sizes(axes, "size [bytes]")


def _draw_bars(axes: Any, results: list[Result], names: list[str]) -> None:
    for result in results:
        place = names.index(_name(result))
        p50_ms = 1e3 * result.timing.p50_s
        axes.barh(place, p50_ms, height=bar_height(axes), color=CURVES[place % len(CURVES)])
        axes.annotate(f" {p50_ms:.3g} ms", (p50_ms, place), va="center", fontsize=8)
        if result.best_s is not None:
            axes.plot(1e3 * result.best_s, place, "x", color=CURVES[7])
    name_bars(axes, names, font_size=8)
    axes.margins(x=0.2)
    axes.set_xlabel(f"time of an all-reduce of {exact_size(results[0].configuration.nbytes)} [ms]")


PAGES = MappingProxyType({SCHEMA: allreduce_page})
"""The function that makes a record's page, by schema."""
