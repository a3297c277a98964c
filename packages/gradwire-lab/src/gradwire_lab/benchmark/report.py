"""The tables that benchmarks end with."""

from __future__ import annotations

from typing import Any

from gradwire.line_rate.page import describe_line, with_note
from gradwire.line_rate.page import line_rate_report_place as place
from gradwire.line_rate.page import log_sizes as _log_sizes
from gradwire.line_rate.page import new_figure as _new_figure
from gradwire.line_rate.page import png_of as _png
from gradwire.page.picture import CURVES, without_frame
from gradwire.plan import Plan
from gradwire.tables import Column, Table, figure, show
from gradwire.timing.line import Line
from gradwire.units import exact_size
from gradwire_lab.benchmark.allreduce import TORCH, Result, torch_times

REDUCE_COLUMNS = (
    Column.of_text("algorithm"),
    Column.of_text("codec"),
    Column("ranks"),
    Column("size"),
    Column("p50", "ms"),
    Column("p99", "ms"),
    Column("algbw", "GB/s"),
    Column("busbw", "GB/s"),
    Column("best", "%"),
    Column("wire", "MB"),
    Column("ratio"),
    Column("speed", "/torch"),
)
REDUCE_NOTE = (
    "Times are the slowest rank's. Bandwidths are of floats: algbw = size / p50, busbw = algbw "
    "2 (p - 1) / p. Best: the least time by theory as a share of p50. Wire: sent by the busiest rank, "
    "headers included. Ratio: bytes of floats per byte on the wire. Every sum was checked against the exact "
    "one, and every rank's bits against the others'."
)


def show_allreduce(results: list[Result], line: Line | None, data: str, link: str | None) -> None:
    """Show a row for every configuration."""
    show(f"all-reduce of {data}, {place(link)}", "", *with_note(*allreduce_table(results, line)))


def allreduce_table(results: list[Result], line: Line | None) -> tuple[Table, str]:
    """Return a table with a row for every configuration, and what its columns mean."""
    torchs = torch_times(results)
    rows = [
        _result_row(result, torchs.get((result.world, result.configuration.nbytes))) for result in results
    ]
    note = REDUCE_NOTE if line is None else f"{REDUCE_NOTE} {describe_line(line)}"
    return Table(REDUCE_COLUMNS, rows), note


def _result_row(result: Result, torch_s: float | None) -> tuple[str, ...]:
    configuration, p50_s = result.configuration, result.timing.p50_s
    ours = any(result.checked.wire_nbytes)
    segment = configuration.segment_nbytes
    name = configuration.algorithm
    share = result.share_of_best
    return (
        name if segment == Plan.segment_nbytes else f"{name} /{exact_size(segment)}",
        configuration.codec,
        str(result.world),
        exact_size(configuration.nbytes),
        figure(1e3 * p50_s),
        figure(1e3 * result.timing.p99_s),
        figure(result.algbw_nbytes_per_s / 1e9),
        figure(result.busbw_nbytes_per_s / 1e9),
        "-" if share is None else f"{100 * share:.0f}",
        figure(max(result.checked.wire_nbytes) / 1e6) if ours else "-",
        f"{result.checked.ratio:.2f}" if ours else "-",
        "-" if torch_s is None else f"{torch_s / p50_s:.2f}x",
    )


# Pictures of benchmarks, as PNG files in memory.

STYLES = ("-", "--", ":")


def draw_allreduce(results: list[Result]) -> bytes:
    """Return the medians: against sizes, a panel for every number of ranks; as bars where there is one size.

    Crosses are the least times by theory.
    """
    figure = _new_figure(size_of(results))
    paint_allreduce(figure, results)
    return _png(figure)


def size_of(results: list[Result]) -> tuple[float, float]:
    """Return the inches of the picture of all-reduces: a panel for each world, a line for each bar."""
    worlds = {result.world for result in results}
    names = {_name(result) for result in results}
    return max(8.0, 2.0 + 4.5 * len(worlds)), 4.2 if _has_sizes(results) else 1.6 + 0.32 * len(names)


def _has_sizes(results: list[Result]) -> bool:
    return len({result.configuration.nbytes for result in results}) > 1


def paint_allreduce(figure: Any, results: list[Result]) -> None:
    """Paint a panel for each number of ranks."""
    worlds = sorted({result.world for result in results})
    several = _has_sizes(results)
    names = list(dict.fromkeys(_name(result) for result in results))
    panels = figure.subplots(1, len(worlds), squeeze=False, sharey=True)[0]
    for axes, world in zip(panels, worlds, strict=True):
        (_draw_curves if several else _draw_bars)(axes, [it for it in results if it.world == world], names)
        axes.set_title(f"{world} ranks", fontsize=10)
        without_frame(axes)
    if several:
        panels[-1].legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _name(result: Result) -> str:
    configuration = result.configuration
    if configuration.algorithm == TORCH:
        return TORCH
    segment = configuration.segment_nbytes
    ending = "" if segment == Plan.segment_nbytes else f" /{exact_size(segment)}"
    return f"{configuration.algorithm} {configuration.codec}{ending}"


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
    _log_sizes(axes, "size [bytes]")


def _draw_bars(axes: Any, results: list[Result], names: list[str]) -> None:
    for result in results:
        place = names.index(_name(result))
        p50_ms = 1e3 * result.timing.p50_s
        axes.barh(place, p50_ms, height=0.62, color=CURVES[place % len(CURVES)])
        axes.annotate(f" {p50_ms:.3g} ms", (p50_ms, place), va="center", fontsize=8)
        if result.best_s is not None:
            axes.plot(1e3 * result.best_s, place, "x", color=CURVES[7])
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.margins(x=0.2)
    axes.set_xlabel(f"time of an all-reduce of {exact_size(results[0].configuration.nbytes)} [ms]")
