"""Step times by number of hosts, and the gain over PyTorch's DDP, for the pages of plans and profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradwire.page import Part, Picture
from gradwire.page.picture import COLOURS, CURVES, legend_above, log_axis, without_frame
from gradwire.plan import Plan
from gradwire.planner.choice import ScalePoint, paying_ranges
from gradwire.planner.explain import name_plan
from gradwire.tables import Column, Table
from gradwire.units import counted, format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINES = {"DDP": ("DDP", "bf16 hook"), "FSDP2": ("FSDP2", "FSDP2 in bf16")}
"""The names of the two baselines for each kind of run: without gradwire, and with gradients in bfloat16."""
_Seconds = Callable[[ScalePoint], float | None]


def read_points(rows: Sequence[Mapping[str, Any]]) -> list[ScalePoint]:
    """Return the points in a record's ``scaling``, without predictions; older records lack baselines."""
    return [
        ScalePoint(
            row["hosts"],
            row["step_s"],
            row["efficiency"] * row["step_s"],
            None,
            row.get("ddp_s"),
            row.get("bf16_hook_s"),
        )
        for row in rows
    ]


def pays(points: Sequence[ScalePoint]) -> str:
    """Return a sentence, without a period, on the numbers of hosts for which each added host pays off."""
    ranges, last = paying_ranges(points), points[-1].hosts
    if not ranges:
        return "Each additional host adds less than half of the throughput of one host"
    named = [
        f"up to {counted(high, 'host')}" if low == points[0].hosts else f"from {low} to {high} hosts"
        for low, high in ranges
    ]
    beyond = ", the largest predicted number" if ranges[-1][1] == last else ""
    return f"Each additional host pays off {' and '.join(named)}{beyond}"


def gains_by_hosts(rows: Sequence[Mapping[str, Any]], here: int, kind: str = "DDP") -> Picture:
    """Return the chart of throughput by number of hosts, with the requested number ``here`` marked."""
    points = read_points(rows)
    plain, hook = BASELINES[kind]
    curves: list[tuple[str, str, str, _Seconds]] = [
        ("with gradwire", CURVES[0], "o-", lambda each: each.step_s),
        (hook, CURVES[1], "s--", lambda each: each.hook_s),
        (plain, CURVES[7], "^:", lambda each: each.plain_s),
    ]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        numbers = [each.hosts for each in points]
        for place, (low, high) in enumerate(paying_ranges(points)):
            label = "" if place else "where each added host pays off"
            axes.axvspan(low, high, color=COLOURS["band"], alpha=0.35, linewidth=0, label=label)
        axes.plot(numbers, numbers, color=COLOURS["rule"], linewidth=1, label="ideal")
        for name, colour, style, seconds in curves:
            known = [
                (each.hosts, each.hosts * each.compute_s / step_s)
                for each in points
                if (step_s := seconds(each))
            ]
            if known:
                axes.plot(*zip(*known, strict=True), style, color=colour, markersize=4, label=name)
        log_axis(axes, "x", "hosts", base=2)
        log_axis(axes, "y", "throughput [hosts]", base=2)
        axes.set_xticks(numbers, [f"{each}" for each in numbers], minor=False)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.axvline(here, color=COLOURS["rule"], linewidth=0.8, linestyle="--")
        axes.grid(alpha=0.25)
        legend_above(axes, 3)
        without_frame(axes)

    caption = (
        "Predicted throughput, in units of one host's throughput, by number of hosts; each host keeps its "
        f"batch size. {pays(points)}. Dashed line: {counted(here, 'host')}."
    )
    return Picture("hosts", caption, paint, 3.4, 3.8)


def by_hosts(rows: Sequence[Mapping[str, Any]], kind: str = "DDP") -> list[Part]:
    """Return the table of step times and gains by number of hosts, or an empty list without ``rows``."""
    if not rows:
        return []
    plain, hook = BASELINES[kind]
    columns = (
        *map(Column, ("hosts", plain, hook, "with gradwire", f"over {plain}", f"over {hook}")),
        *map(Column, ("throughput", "efficiency")),
        Column.of_text("plan"),
    )
    cells = [
        (
            str(point.hosts),
            *("" if each is None else format_duration(each) for each in (point.plain_s, point.hook_s)),
            format_duration(point.step_s),
            *(_gain(each, point.step_s) for each in (point.plain_s, point.hook_s)),
            f"{point.speedup:.2f}x",
            f"{100 * point.efficiency:.0f} %",
            "" if row.get("plan") is None else name_plan(Plan.from_values(row["plan"])),
        )
        for point, row in zip(read_points(rows), rows, strict=True)
    ]
    return [
        ("Predicted steps with other numbers of hosts", Table(columns, cells)),
        f"{pays(read_points(rows))}.",
    ]


def _gain(baseline_s: float | None, step_s: float) -> str:
    return "" if baseline_s is None else f"{baseline_s / step_s:.2f}x"
