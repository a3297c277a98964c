"""Charts of the documentation as SVG files, for phones too, in the reader's light or dark scheme."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from gradwire.page import Picture
from gradwire.page.picture import COLOURS, CURVES, draw, legend_above, without_frame
from gradwire.timing.interval import Ratio
from gradwire_lab.experiments.experiment import Row, grouped, select
from gradwire_lab.experiments.gain import PREDICTION, gains_of
from gradwire_lab.experiments.speeds import (
    ATTACHED,
    FIXED,
    HOOK,
    JUDGE,
    PIPELINED,
    POWER_SGD,
    Speed,
    Trained,
    curve_of,
    ratio,
    trained,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Records = Mapping[str, Sequence[Row]]
"""The rows of records, by the titles of their groups."""
ROW_IN, FRAME_IN = 0.21, 0.95
"""The heights of a row of dots and of the axis, in inches."""
COLOUR_OF = {
    JUDGE: CURVES[7],
    HOOK: CURVES[1],
    POWER_SGD: CURVES[4],
    ATTACHED: CURVES[0],
    FIXED[0]: CURVES[2],
    FIXED[1]: CURVES[5],
    PIPELINED: CURVES[3],
}
TIMED = (HOOK, POWER_SGD, *FIXED[:2], ATTACHED, PIPELINED)
STEPPED = (HOOK, FIXED[0], FIXED[1], POWER_SGD)
CURVED = (JUDGE, HOOK, FIXED[0], ATTACHED)
"""The methods in the charts of times, of steps, and of losses."""


def speed_chart(records: Records) -> Picture:
    """Return the chart of the times to plain DDP's loss."""

    def found(task: Trained, speed: Speed) -> Ratio | None:
        return ratio(speed.time_s, task.judge.time_s)

    return _dots("training-speed", records, TIMED, found, "times as fast as plain DDP,\nto the same loss")


def steps_chart(records: Records) -> Picture:
    """Return the chart of the steps to plain DDP's loss, which show the cost of a codec's error."""

    def found(task: Trained, speed: Speed) -> Ratio | None:
        steps = [{seed: step for seed, (step, _) in each.reached.items()} for each in (task.judge, speed)]
        return ratio(*steps) if speed.has_reached else None

    return _dots("codec-steps", records, STEPPED, found, "steps to plain DDP's loss,\nover DDP's own steps")


def _dots(
    name: str,
    records: Records,
    methods: Sequence[str],
    find: Callable[[Trained, Speed], Ratio | None],
    label: str,
) -> Picture:
    """Return a chart with a dot and its interval for each method, below the task's title."""
    tasks = {title: trained(rows) for title, rows in records.items()}
    found = {
        title: {each: find(task, task.speeds[each]) for each in methods if each in task.speeds}
        for title, task in tasks.items()
        if not task.problem
    }
    rows = sum(map(len, found.values())) + len(tasks)
    return Picture(name, label, partial(_paint_dots, found, label), FRAME_IN + ROW_IN * rows)


def _paint_dots(tasks: Mapping[str, Mapping[str, Ratio | None]], label: str, drawn: Figure) -> None:
    axes = drawn.subplots()
    ticks, names, place = list[int](), list[str](), 0
    left: dict[str, Any] = {
        "transform": axes.get_yaxis_transform(),
        "ha": "right",
        "va": "center",
        "weight": "bold",
    }
    for title, task in tasks.items():
        axes.text(-0.02, place, title, **left)
        place += 1
        for method, found in task.items():
            ticks.append(place)
            names.append(method)
            if found is None:
                axes.text(1.03, place, "not reached by all seeds", va="center", fontsize=8)
            else:
                around = [[found.mean - found.least], [found.most - found.mean]]
                style: dict[str, Any] = {
                    "fmt": "o",
                    "color": COLOUR_OF[method],
                    "markersize": 5,
                    "elinewidth": 1.5,
                }
                axes.errorbar(found.mean, place, xerr=around, **style)
            place += 1
    axes.axvline(1, color=COLOURS["rule"], linewidth=1, zorder=0)
    axes.set_yticks(ticks, names, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(place - 0.5, -0.7)
    axes.set_xlabel(f"{label}\n(mean, and 95 % interval)")
    axes.grid(axis="x", alpha=0.4)
    without_frame(axes)


def losses_chart(records: Records) -> Picture:
    """Return the chart of the first seed's held-out losses over the training time, for each task."""
    tasks = {title: found for title, rows in records.items() if not (found := trained(rows)).problem}
    label = "seconds of training"
    return Picture("auto-losses", label, partial(_paint_losses, tasks, label), 2.4 * len(tasks))


def _paint_losses(tasks: Mapping[str, Trained], label: str, drawn: Figure) -> None:
    every = drawn.subplots(len(tasks), squeeze=False)[:, 0]
    for axes, (title, task) in zip(every, tasks.items(), strict=True):
        for method in filter(task.speeds.__contains__, CURVED):
            first = min(task.speeds[method].rows)
            _, seconds, losses = zip(*curve_of(task.speeds[method].rows[first]), strict=True)
            style = {"color": COLOUR_OF[method], "markersize": 2.5, "linewidth": 1.5, "label": method}
            axes.plot(seconds, losses, "-o", **style)
        axes.axhline(task.judge.targets[first], color=COLOURS["rule"], linestyle=":", linewidth=1)
        axes.set_xlim(left=0)
        axes.set_ylabel("held-out loss")
        axes.set_xlabel(f"{title}: {label}", fontsize=8)
        _in_a_frame(axes)
    legend_above(every[0], 2)


def gain_chart(records: Records) -> Picture:
    """Return the chart of the predicted gains over DDP or its bf16 hook, by link rate, for each model."""
    label = "predicted speed over DDP\nor its bf16 hook, if that is faster"
    rows = [row for group in records.values() for row in select(group, part=PREDICTION)]
    models = grouped(rows, "model")
    height_in = 0.4 + 1.9 * len(models)
    return Picture("gain", label, partial(_paint_gains, models, label), height_in)


def _paint_gains(models: Records, label: str, drawn: Figure) -> None:
    every = drawn.subplots(len(models), squeeze=False, sharex=True)[:, 0]
    for axes, (name, rows) in zip(every, models.items(), strict=True):
        for colour, (hosts, own) in zip(CURVES, grouped(rows, "hosts").items(), strict=False):
            gains = [min(gains_of(row)[:2]) for row in own]
            rates = [row["rate"] for row in own]
            axes.plot(rates, gains, "-o", color=colour, markersize=4, label=f"{hosts} hosts")
        axes.axhline(1, color=COLOURS["ink"], linewidth=1, linestyle=":")
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"{name}, times")
        _in_a_frame(axes)
    every[-1].set_xlabel(f"link rate\n({label};\nat the dotted line or below,\nkeep DDP or the hook)")
    legend_above(every[0], 2)


def _in_a_frame(axes: Axes) -> None:
    axes.grid(alpha=0.4)
    without_frame(axes)


# A picture as a file with the colours of both schemes. In a page, the page's style has these colours.


def chart_file(picture: Picture) -> str:
    """Return a picture as an SVG file with its own background, in a light and a dark scheme."""
    svg = draw(picture, narrow=True)
    light, dark = schemes()
    style = (
        f":root {{ {light} }} @media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }} "
        "svg * { stroke-linejoin: round; }"
    )
    (box,) = re.findall(r'viewBox="0 0 (\S+) (\S+)"', svg)
    opening, _, inside = svg.partition(">")
    opening = opening.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"')
    background = f'<rect width="{box[0]}" height="{box[1]}" style="fill: var(--paper)"/>'
    title = f'<title id="{picture.name}-caption">{escape(" ".join(picture.caption.split()))}</title>'
    return f"{opening}>\n{title}\n<style>{style}</style>\n{background}\n{inside.strip()}\n"


@cache
def schemes() -> tuple[str, str]:
    """Return the colours of pages as CSS declarations, in the light and in the dark scheme."""
    template = (files("gradwire.page") / "report.html.j2").read_text(encoding="utf-8")
    light, dark = (
        re.search(rf"\{{ color-scheme: {name};(?P<colours>[^}}]*)\}}", template) for name in ("light", "dark")
    )
    if light is None or dark is None:
        raise LookupError(
            "expected colours of a light and a dark scheme in the pages' template, got none; correct the "
            "pattern in schemes()"
        )
    return light["colours"].strip(), dark["colours"].strip()
