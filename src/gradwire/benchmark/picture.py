"""Pictures of benchmarks, as PNG files in memory."""

from __future__ import annotations

import io
from typing import Any

from gradwire.benchmark.allreduce import TORCH
from gradwire.benchmark.result import Result
from gradwire.page.palette import CURVES
from gradwire.plan import Plan
from gradwire.timing.replay.line import LineRate
from gradwire.units import exact_size, format_duration, format_rate

STYLES = ("-", "--", ":")


def draw_line_rate(rate: LineRate) -> bytes:
    """Return time and bandwidth against message size, both axes logarithmic.

    Source: Iandola and others, a measurement study, figure 7.
    """
    figure = _new_figure((10.5, 4.2))
    paint_line_rate(figure, rate)
    return _png(figure)


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
        _log_sizes(axes, "message size [bytes]")
        axes.legend(fontsize=8, frameon=False)


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
        axes.spines[["top", "right"]].set_visible(False)
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


def _new_figure(size: tuple[float, float]) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _log_sizes(axes: Any, label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(label)
    axes.grid(alpha=0.25, which="major")
    axes.spines[["top", "right"]].set_visible(False)


def _png(figure: Any) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()
