"""The picture: error over time (figure 3), time to the error (figures 4 and 5), and bits over batches."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gradwire.experiments.a2dtwp.options import AWP, FP32, SYSTEMS
from gradwire.experiments.a2dtwp.verdict import curve_of, seconds_to, target_of
from gradwire.experiments.experiment import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(rows: Sequence[Row]) -> bytes:
    """Return a row of pictures for each model."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    by_model: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_model.setdefault(row["model"], {})[row["policy"]] = row
    systems = [name for name in SYSTEMS if name in rows[0]["cycles"]]
    picture, height = io.BytesIO(), 3.2 * len(by_model)
    canvas = Figure(figsize=(5 * (len(systems) + 2), height), dpi=110, layout="constrained")
    FigureCanvasAgg(canvas)
    every = canvas.subplots(len(by_model), len(systems) + 2, squeeze=False)
    for axes, (model, own) in zip(every, by_model.items(), strict=True):
        for place, system in zip(axes, systems, strict=False):
            _draw_errors(place, own, system)
            place.set_title(f"{model} on the link of {system}")
        _draw_times(axes[-2], own, systems)
        _draw_bits(axes[-1], own)
    canvas.savefig(picture, format="png")
    return picture.getvalue()


def _draw_errors(axes: Axes, rows: Mapping[str, Row], system: str) -> None:
    for name, row in rows.items():
        points = curve_of(row, system)
        axes.plot([seconds for _, seconds, _ in points], [100 * error for _, _, error in points], label=name)
    axes.set_xlabel("seconds")
    axes.set_ylabel("validation error [%]")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize="x-small")


def _draw_times(axes: Axes, rows: Mapping[str, Row], systems: Sequence[str]) -> None:
    if FP32 not in rows:
        return
    target = target_of(rows[FP32])
    for number, system in enumerate(systems):
        base = seconds_to(rows[FP32], system, target)
        times = [seconds_to(row, system, target) for row in rows.values()]
        shares = [0.0 if base is None or each is None else each / base for each in times]
        places = [place + 0.4 * number for place in range(len(rows))]
        axes.bar(places, shares, width=0.38, label=system)
    axes.set_xticks(range(len(rows)), [*rows], rotation=30, ha="right", fontsize="x-small")
    axes.set_ylabel("time to the error, over fp32's")
    axes.legend(frameon=False, fontsize="x-small")


def _draw_bits(axes: Axes, rows: Mapping[str, Row]) -> None:
    if AWP not in rows:
        return
    row = rows[AWP]
    for layer, name in enumerate(row["layers"]):
        axes.step(range(len(row["bits"])), [bits[layer] for bits in row["bits"]], where="post", label=name)
    axes.set_xlabel("batches")
    axes.set_ylabel("bits of each layer (awp)")
    axes.set_yticks([8, 16, 24, 32])
