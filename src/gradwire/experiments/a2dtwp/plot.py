"""The picture: error over batches, time to the error (figures 3 to 5), and each layer's bits over batches."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradwire.experiments.a2dtwp.measured import Measured
from gradwire.experiments.a2dtwp.options import AWP, FP32, LINKS, POLICIES, TRAINS_AS
from gradwire.experiments.experiment import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(rows: Sequence[Row]) -> bytes:
    """Return a row of pictures for each network."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found, picture = Measured(rows), io.BytesIO()
    canvas = Figure(figsize=(16, 3.2 * len(found.networks)), dpi=110, layout="constrained")
    FigureCanvasAgg(canvas)
    every = canvas.subplots(len(found.networks), 3, squeeze=False)
    for (errors, times, bits), model in zip(every, found.networks, strict=True):
        _draw_errors(errors, found, model)
        _draw_times(times, found, model)
        _draw_bits(bits, found, model)
    canvas.savefig(picture, format="png")
    return picture.getvalue()


def _draw_errors(axes: Axes, found: Measured, model: str) -> None:
    for policy in POLICIES:
        if policy not in TRAINS_AS and found.trainings(model, policy):
            points = found.curve(model, policy)
            axes.plot([batch for batch, _ in points], [100 * error for _, error in points], label=policy)
    axes.set_title(f"{model} on {found.images}")
    axes.set_xlabel("batches")
    axes.set_ylabel("validation error [%]")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize="x-small")


def _draw_times(axes: Axes, found: Measured, model: str) -> None:
    policies = [policy for policy in POLICIES if found.trainings(model, policy)]
    if FP32 not in policies:
        return
    for number, system in enumerate(LINKS):
        saved = [found.gain(model, policy, FP32, system) for policy in policies]
        places = [place + 0.4 * number for place in range(len(policies))]
        axes.bar(places, [0.0 if each is None else 1 - each for each in saved], width=0.38, label=system)
    axes.set_xticks(range(len(policies)), policies, rotation=30, ha="right", fontsize="x-small")
    axes.set_ylabel("time to the error, over fp32's")
    axes.legend(frameon=False, fontsize="x-small")


def _draw_bits(axes: Axes, found: Measured, model: str) -> None:
    for row in found.trainings(model, AWP)[:1]:
        last = row["errors"][-1][0]
        batches = [*(batch for batch, _ in row["bits"]), last]
        for layer, name in enumerate(row["layers"]):
            bits = [each[layer] for _, each in row["bits"]]
            axes.step(batches, [*bits, bits[-1]], where="post", label=name)
    axes.set_xlabel("batches")
    axes.set_ylabel("bits of each layer (awp)")
    axes.set_yticks([8, 16, 24, 32])
