"""The picture: throughput over the nodes (figure 4b), and the measured steps."""

from __future__ import annotations

import io
from collections.abc import Sequence
from statistics import fmean

from gradwire.experiments.experiment import Row
from gradwire.experiments.smart_nic.options import CALIBRATION, SCALING, STEP, part_of
from gradwire.experiments.smart_nic.prediction import parameters, predicted
from gradwire.experiments.smart_nic.published import BASELINE, NIC, NIC_BFP

CURVES = ((BASELINE, "conventional NICs"), (NIC, "smart NICs"), (NIC_BFP, "smart NICs with BFP"))


def plot(rows: Sequence[Row]) -> bytes:
    """Return a picture of each batch's curves, and one of the steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    batches = sorted({row["batch"] for row in part_of(rows, SCALING)})
    steps = part_of(rows, STEP)
    count = max(1, len(batches) + bool(steps))
    picture, canvas = io.BytesIO(), Figure(figsize=(4.5 * count, 3.4), dpi=110, layout="constrained")
    FigureCanvasAgg(canvas)
    places = canvas.subplots(1, count, squeeze=False)[0]
    for place, batch in zip(places, batches, strict=False):
        points = [row for row in part_of(rows, SCALING) if row["batch"] == batch]
        nodes = [row["nodes"] for row in points]
        place.plot(nodes, nodes, "k--", linewidth=0.8, label="ideal")
        for name, label in CURVES:
            place.plot(nodes, [row[name] for row in points], "o-", markersize=3, label=label)
        place.set_title(f"batch {batch}")
        place.set_xlabel("nodes")
        place.set_ylabel("throughput over one node's")
        place.legend(frameon=False, fontsize="x-small")
    if steps:
        at = range(len(steps))
        known = parameters(part_of(rows, CALIBRATION)[0])
        names = [f"{row['hosts']} hosts, {row['method']}, {row['codec']}" for row in steps]
        places[-1].barh(at, [fmean(row["step_s"]) for row in steps], label="measured")
        places[-1].plot([predicted(known, row).total_s for row in steps], at, "kx", label="predicted")
        places[-1].set_yticks(at, names, fontsize="xx-small")
        places[-1].invert_yaxis()
        places[-1].set_xlabel("seconds of a step")
        places[-1].legend(frameon=False, fontsize="x-small")
    canvas.savefig(picture, format="png")
    return picture.getvalue()
