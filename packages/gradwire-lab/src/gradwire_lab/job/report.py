"""The table and the plot at the end of ``gradwire train``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from gradwire.line_rate.page import new_figure, png_of
from gradwire.machine import rates_in_words
from gradwire.page.picture import CURVES, GREY, LOG_SCALE, legend_above, paint_bars, without_frame
from gradwire.tables import Column, Table, show
from gradwire.units import counted
from gradwire_lab.columns import Columns, table_of
from gradwire_lab.job.options import D_SYNC, DDP, PS_SYNC, JobOptions, Run
from gradwire_lab.job.record import (
    LAST,
    MODEL,
    TIE,
    EqualLoss,
    RunResult,
    equal_loss,
    prediction,
    speed_up,
    step_verdict,
    too_short,
    verdict,
)

NOTE = (
    "Per step: exposed is the communication that computation does not hide, and wire is the bytes that "
    "all ranks send, including headers. Ratio: bytes of floats per byte on the wire."
)
SPEEDS = "The last columns are speed-ups in wall-clock training time, without evaluation."
_SHORT = {PS_SYNC: "PS", D_SYNC: "D", DDP: "DDP"}
"""The baselines with which speed-ups are computed, and their names in column headers."""
COLUMNS: Columns[RunResult] = (
    (Column.of_text("run"), lambda result: result.run.label),
    (Column("top-1", "%"), lambda result: f"{100 * result.accuracy:.2f}"),
    (Column("step", "ms"), lambda result: f"{1e3 * result.step_s:.1f}"),
    (Column("compute", "ms"), lambda result: f"{1e3 * result.compute_s:.1f}"),
    (Column("codec", "ms"), lambda result: f"{1e3 * result.codec_s:.1f}"),
    (Column("exposed", "ms"), lambda result: f"{1e3 * result.exposed_s:.1f}"),
    (Column("wire", "MB"), lambda result: f"{result.wire_nbytes / result.steps / 1e6:.2f}"),
    (Column("ratio"), lambda result: f"{result.ratio:.1f}x"),
)


def columns(results: tuple[RunResult, ...], equal: EqualLoss | None) -> Columns[RunResult]:
    """Return the table's columns; the last columns are times to equal loss, or speed-ups."""
    if equal is None:
        return [*COLUMNS, *(_speed(results, run) for run in _bases(results))]

    def to_loss(result: RunResult) -> str:
        seconds = equal.seconds(result.run)
        return "-" if seconds is None else f"{seconds:.2f}"

    speed = Column("speed", f"/ {_SHORT[equal.baseline.run]}")
    gain = (speed, lambda result: _times(equal.gain(result.run)))
    return [*COLUMNS, (Column("to loss", "s"), to_loss), gain]


def _speed(results: tuple[RunResult, ...], baseline: Run) -> tuple[Column, Callable[[RunResult], str]]:
    """Return the column of speed-ups over a baseline."""
    column = Column("speed", f"/ {_SHORT[baseline]}")
    return column, lambda result: _times(speed_up(result, results, baseline))


def show_report(options: JobOptions, results: tuple[RunResult, ...], verbose: bool = False) -> None:
    """Write the verdict, the table (with ``verbose``, also reasons), and a command for the user's model."""
    title = title_of(options.data, options.model, options.workers, link_text(options))
    equal = _judged(results)
    said = step_verdict(results) if equal is None else verdict(equal)
    if said is not None:
        show(f"{said}.", "")
    show_results(f"{title}, {results[0].steps} steps", results, verbose)
    if equal is not None:
        show_next(options.workers, options.link or rates_in_words() or "1gbit")


def show_results(title: str, results: tuple[RunResult, ...], verbose: bool) -> None:
    """Write a title and the table, with ``verbose`` also the reasons of every chosen plan."""
    made, note = table(results)
    show(title, "", made, "", note)
    chosen = [(result.run.label, *decided) for result in results for decided in result.decided]
    if verbose:
        for label, step, reason in chosen:
            show("", f"{label}: from step {step} on, {reason}")
    elif chosen:
        times = counted(len(chosen), "time")
        show("", f"Plans were chosen or tried {times}; --verbose and the page say why.")


def show_next(workers: int, rate: str) -> None:
    """Write the command that predicts the comparison for the user's model."""
    show("", f"For your model, say of {MODEL} parameters:")
    sys.stdout.write(f"  {prediction(max(2, workers), rate)}\n")  # on one line, so that it can be copied


def table(results: tuple[RunResult, ...]) -> tuple[Table, str]:
    """Return a table of all runs, and a note that explains its columns."""
    equal = _judged(results)
    said = _explain(equal) if equal is not None else SPEEDS if _bases(results) else ""
    note = " ".join([NOTE, *filter(None, (said, *(f"{each}." for each in too_short(results))))])
    return table_of(columns(results, equal), results), note


def title_of(data: str, model: str, workers: int, link: str) -> str:
    """Return the title: data, model, workers, and network."""
    return f"{data}, {model}: {workers} workers, {link}"


def link_text(options: JobOptions) -> str:
    """Return the network in words. Raises ``JobError`` if the testbed has no description."""
    return links_in_words(options.link, rates_in_words())


def links_in_words(link: str | None, rates: str | None) -> str:
    """Return the throttled link rate and the testbed's rates in words."""
    if link:
        return f"{link} links" if rates is None else f"{link} links in a testbed of {rates}"
    return "unthrottled links" if rates is None else f"testbed links of {rates}"


def _judged(results: tuple[RunResult, ...]) -> EqualLoss | None:
    """Return the times to equal loss, or None with PS-Sync, whose speed-ups fill the last columns."""
    return None if any(result.run == PS_SYNC for result in results) else equal_loss(results)


def _explain(equal: EqualLoss) -> str:
    return (
        f"To loss: seconds of training until the held-out loss is {equal.target:.4f}, the median of the last "
        f"{LAST} evaluations of {equal.baseline.run.label}, interpolated linearly; -: never. "
        "Speed: the baseline's time divided by the run's. Each run trained once, so differences below "
        f"{100 * TIE:.0f} % are ties."
    )


def _bases(results: tuple[RunResult, ...]) -> list[Run]:
    """Return the baselines among the runs of a comparison, two at most."""
    runs = [result.run for result in results]
    return [run for run in _SHORT if run in runs and len(runs) > 1][:2]


def _times(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.1f}x"


# The plot of a job: learning curves on the left, the parts of a step's time on the right.
#
# The left plot shows the held-out loss if PyTorch's DDP is among the runs, else the accuracy.

PARTS = (("compute", GREY), ("codec", CURVES[4]), ("exposed communication", CURVES[5]))


def draw(options: JobOptions, results: tuple[RunResult, ...]) -> bytes:
    """Return the plot of a job as a PNG."""
    results = attach_first(results)
    figure = new_figure((11.5, 2.7 + 0.4 * max(len(results), 4)))
    curves, bars = figure.subplots(1, 2, gridspec_kw={"width_ratios": (1.0, 1.15)})
    draw_curves(curves, results)
    draw_bars(bars, results)
    title = title_of(options.data, options.model, options.workers, link_text(options))
    figure.suptitle(f"{title}, global batch {options.batch}, {results[0].steps} steps", fontsize=11)
    return png_of(figure)


def attach_first(results: tuple[RunResult, ...]) -> tuple[RunResult, ...]:
    """Return the results in plotting order: ``attach``, other runs of gradwire, then baselines."""
    if not any(result.run.method == "attach" for result in results):
        return results
    methods = ("attach", "sharded", "pipe", "sync", "server", "bf16-hook", "ddp")
    return tuple(sorted(results, key=lambda result: methods.index(result.run.method)))


def draw_curves(axes: Any, results: tuple[RunResult, ...]) -> None:
    """Draw accuracy over training time or, with DDP among the runs, held-out losses and the target."""
    from matplotlib.ticker import LogLocator

    on_ddp = any(result.run == DDP for result in results)
    equal = equal_loss(results) if on_ddp else None
    for number, result in enumerate(results):
        axes.plot(
            [epoch.train_s for epoch in result.epochs],
            [epoch.held_out_loss if equal else 100 * epoch.accuracy for epoch in result.epochs],
            **_style(number),
            label=result.run.label,
        )
    times = [epoch.train_s for result in results for epoch in result.epochs]
    is_log = equal is None and max(times) > 10 * min(times)
    if is_log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    if equal is not None:
        axes.axhline(equal.target, color=GREY, linewidth=0.8, linestyle=":")
        axes.annotate(
            f"{equal.baseline.run.label} ends",
            (1.0, equal.target),  # next to the plot, where no curve is
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=8,
            va="center",
        )
    axes.set_xlabel(f"time of training [s]{LOG_SCALE if is_log else ''}")
    axes.set_ylabel("held-out loss" if equal else "top-1 accuracy on the test set [%]")
    _finish(axes)


def draw_losses(axes: Any, results: tuple[RunResult, ...]) -> None:
    """Draw the training losses over steps."""
    for number, result in enumerate(results):
        steps, losses = zip(*((epoch.step, epoch.loss) for epoch in result.epochs), strict=True)
        axes.plot(steps, losses, **_style(number), label=result.run.label)
    axes.set_xlabel("steps")
    axes.set_ylabel("training loss")
    _finish(axes)


def _finish(axes: Any) -> None:
    axes.grid(alpha=0.25, which="major")
    legend_above(axes, 2)
    without_frame(axes)


def draw_bars(axes: Any, results: tuple[RunResult, ...]) -> None:
    """Draw a stacked bar of each run's step time: computation, codec, exposed communication."""
    runs = [result.run for result in results]
    baseline = next((run for run in (DDP, PS_SYNC, D_SYNC) if run in runs), None)
    parts = [
        (name, colour, [1e3 * getattr(result, field) for result in results])
        for (name, colour), field in zip(PARTS, ("compute_s", "codec_s", "exposed_s"), strict=True)
    ]
    label = f"time of a step [ms]{f', speed-up over {baseline.label}' if baseline else ''}"
    ends = paint_bars(axes, [run.label for run in runs], parts, label)
    for place, (result, end) in enumerate(zip(results, ends, strict=True)):
        note = _note(result, results, baseline)
        axes.annotate(note, (end, place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xlim(0, 1.25 * max(ends))


def _style(number: int) -> dict[str, Any]:
    """Return the colour, line style, and marker of a curve."""
    turn, colour = divmod(number, len(CURVES))
    line, marker = (("-", "o"), ("--", "s"), (":", "^"))[turn % 3]
    return {
        "color": CURVES[colour],
        "linestyle": line,
        "marker": marker,
        "markersize": 3.5,
        "linewidth": 1.6,
    }


def _note(result: RunResult, results: tuple[RunResult, ...], baseline: Run | None) -> str:
    total = f"{1e3 * result.step_s:.1f} ms"
    if baseline is None or result.run == baseline:
        return total
    return f"{total}, {speed_up(result, results, baseline):.1f}x"
