"""The report and the picture of the demo, from the records of its jobs on two networks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from gradwire.line_rate.page import new_figure, png_of
from gradwire.page.picture import CURVES, paint_bars
from gradwire.tables import show
from gradwire_lab.job.options import DDP
from gradwire_lab.job.record import RunResult, equal_loss, in_times, too_short, verdict
from gradwire_lab.job.report import attach_first, draw_bars, draw_curves, show_next, show_results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SETTLED = 4
"""The number of final evaluations, after ``attach`` has chosen a plan, that count on the slow network."""


@dataclass(frozen=True)
class NetworkRuns:
    """The runs on one network, and its rate in words, such as ``1gbit``."""

    rate: str
    results: tuple[RunResult, ...]


def settled_step_s(result: RunResult) -> float:
    """Return the median seconds of a step at the end, without the first interval, which connects."""
    ends = [(0, 0.0), *((epoch.step, epoch.train_s) for epoch in result.epochs)]
    spans = [(later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in itertools.pairwise(ends)]
    return median(spans[1:][-SETTLED:] or spans)


def in_words(fast: NetworkRuns, slow: NetworkRuns | None) -> str:
    """Return the demo's verdict: times to equal loss on the fast network, and steps on the slow network."""
    equal = equal_loss(fast.results)
    sentences = [
        f"At {fast.rate}, {verdict(equal)}." if equal else f"At {fast.rate}, no comparison is possible."
    ]
    sentences += [f"{each}." for each in too_short(fast.results)]
    if slow is not None:
        sentences.append(_steps_in_words(slow))
    return " ".join(sentences)


def _steps_in_words(slow: NetworkRuns) -> str:
    """Return a comparison of the steps of ``attach`` and of the baselines on the slow network, in words."""
    first, *others = attach_first(slow.results)
    own_s = settled_step_s(first)
    compared = [in_times(settled_step_s(each) / own_s, each.run.label) for each in reversed(others)]
    return (
        f"At {slow.rate}, a step of {first.run.label} is {' and '.join(compared)}, once its plan is chosen; "
        "this part is too short to compare losses."
    )


def show_demo(title: str, fast: NetworkRuns, slow: NetworkRuns | None, workers: int, verbose: bool) -> None:
    """Write the verdict, the table, and a command for the user's own model to standard output."""
    show("", in_words(fast, slow), "")
    show_results(title, fast.results, verbose)
    if slow is not None:
        steps = ", ".join(
            f"{each.run.label} {1e3 * settled_step_s(each):.0f} ms" for each in attach_first(slow.results)
        )
        show("", f"Steps at {slow.rate}, the median after the choice of a plan: {steps}.")
    show_next(workers, fast.rate)


def draw_demo(title: str, fast: NetworkRuns, slow: NetworkRuns | None) -> bytes:
    """Return the demo's picture as a PNG: losses over time, a step's parts, and the slow network's steps."""
    figure = new_figure((11.5, 5.8 if slow else 4.3))
    results = attach_first(fast.results)
    sizes = {"width_ratios": (1.0, 1.15), "height_ratios": (1.0, 0.5)[: 2 if slow else 1]}
    rows = figure.subplots(2 if slow else 1, 2, squeeze=False, gridspec_kw=sizes)
    draw_curves(rows[0][0], results)
    draw_bars(rows[0][1], results)
    if slow is not None:
        grid = rows[1][0].get_gridspec()
        for axes in rows[1]:
            axes.remove()
        _draw_steps(figure.add_subplot(grid[1, :]), slow)
    figure.suptitle(title, fontsize=11)
    return png_of(figure)


def _draw_steps(axes: Axes, slow: NetworkRuns) -> None:
    """Draw a bar for each run's step on the slow network, with the speed-up over DDP."""
    results = attach_first(slow.results)
    times_ms = [1e3 * settled_step_s(each) for each in results]
    ddp_ms = times_ms[[result.run for result in results].index(DDP)]
    label = f"time of a step at {slow.rate} [ms], after the choice of a plan, and speed-up over DDP"
    names = [each.run.label for each in results]
    paint_bars(axes, names, [("a step", CURVES[0], times_ms)], label)
    if (legend := axes.get_legend()) is not None:
        legend.remove()
    for place, (result, time_ms) in enumerate(zip(results, times_ms, strict=True)):
        note = f"{time_ms:.0f} ms" + ("" if result.run == DDP else f", {ddp_ms / time_ms:.1f}x")
        axes.annotate(
            note, (time_ms, place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8
        )
    axes.set_xlim(0, 1.12 * max(times_ms))
