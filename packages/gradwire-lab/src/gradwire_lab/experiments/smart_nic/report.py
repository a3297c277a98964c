"""The tables: constants and figures, rings, measured steps, and the claims."""

from __future__ import annotations

import io
from collections.abc import Sequence
from statistics import fmean

from gradwire.tables import Column, Table, figure
from gradwire_lab.experiments.claim import claims_parts
from gradwire_lab.experiments.experiment import Row, select
from gradwire_lab.experiments.smart_nic.options import (
    BASELINE,
    CALIBRATION,
    CONSTANT,
    FIGURE,
    NIC,
    NIC_BFP,
    RING,
    SCALING,
    STEP,
)
from gradwire_lab.experiments.smart_nic.prediction import parameters, predicted
from gradwire_lab.experiments.smart_nic.verdict import claims, error
from gradwire_lab.smart_nic_figures import ERRATA

CONSTANTS = (Column.of_text("constant"), Column.of_text("value"), Column.of_text("from"))
FIGURES = (
    Column.of_text("figure of the paper"),
    Column("published"),
    Column("model"),
    Column("error", "%"),
    Column.of_text("how"),
)
CURVES = (
    Column("batch"),
    Column("nodes"),
    Column("baseline"),
    Column("NIC"),
    Column("NIC + BFP"),
    Column("speed-up"),
)
RINGS = (
    Column.of_text("codec"),
    Column("nodes"),
    Column("all-reduces"),
    Column("T_ring"),
    Column("T_add"),
    Column("T_mem"),
    Column("latency"),
    Column("model"),
    Column("simulated"),
    Column("error", "%"),
)
STEPS = (
    Column("hosts"),
    Column("rate"),
    Column("width"),
    Column("batch"),
    Column.of_text("method"),
    Column.of_text("codec"),
    Column("measured", "ms"),
    Column("predicted", "ms"),
    Column("error", "%"),
    Column("accuracy"),
)


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return the tables of the parts that were performed."""
    parts: list[str | Table] = []
    if select(rows, part=FIGURE):
        parts += [*_paper(rows), ""]
    rings, calibrations = select(rows, part=RING), select(rows, part=CALIBRATION)
    if rings:
        words = rings[0]["chunk_words"]
        title = f"cycles of the gateware's ring, chunks of {words} words of 256 bits"
        parts += [title, "", Table(RINGS, [_ring(row) for row in rings]), ""]
    for calibration in calibrations:
        steps = [_step(row, calibration) for row in select(rows, part=STEP)]
        parts += [_calibrated(calibration), "", Table(STEPS, steps), ""]
    judged = claims(rows)
    learned = [each.in_words() for claim in judged for each in claim.rests_on if each.problem]
    return [*parts, *claims_parts(judged), *dict.fromkeys(learned)]


def _paper(rows: Sequence[Row]) -> list[str | Table]:
    constants = [
        (row["what"], row["value"], f"omitted; {row['source']}" if row["omitted"] else row["source"])
        for row in select(rows, part=CONSTANT)
    ]
    figures = [
        (
            row["what"],
            f"{row['published']:g}",
            f"{row['model']:.3g}",
            f"{100 * error(row):+.1f}",
            row["how"],
        )
        for row in select(rows, part=FIGURE)
    ]
    curves = [
        (
            str(row["batch"]),
            str(row["nodes"]),
            *(f"{row[name]:.2f}" for name in (BASELINE, NIC, NIC_BFP)),
            f"{row[NIC_BFP] / row[BASELINE]:.2f}x",
        )
        for row in select(rows, part=SCALING)
    ]
    return [
        Table(CONSTANTS, constants),
        "",
        Table(FIGURES, figures),
        "",
        "throughput over that of one node (figure 4b), modelled",
        "",
        Table(CURVES, curves),
        "",
        "Errata of the paper: " + " ".join(ERRATA),
    ]


def _ring(row: Row) -> tuple[str, ...]:
    names = ("ring_", "add_", "memory_", "latency_", "model_", "")
    return (
        row["codec"],
        str(row["nodes"]),
        str(row["rounds"]),
        *(f"{row[f'{name}cycles']:.0f}" for name in names),
        f"{100 * error(row):+.2f}",
    )


def _calibrated(row: Row) -> str:
    known = parameters(row)
    return (
        f"steps of {row['layers']} layers on {row['data']}, predicted with what {row['hosts']} hosts at "
        f"{row['rate']} gave (width {row['width']}, batch {row['batch']}): a core computes "
        f"{1e-9 * known.flops_per_s:.0f} Gflop/s and adds {1e-9 * known.adds_per_s:.2f} G values/s, alpha is "
        f"{known.usable_share:.2f}"
    )


def _step(row: Row, calibration: Row) -> tuple[str, ...]:
    trace = predicted(parameters(calibration), row)
    times = (fmean(row["step_s"]), trace.total_s)
    return (
        *(str(row[name]) for name in ("hosts", "rate", "width", "batch", "method", "codec")),
        *(figure(1e3 * each) for each in times),
        f"{100 * error(row, calibration):+.1f}",
        f"{fmean(row['accuracies']):.3f}",
    )


# The picture: throughput over the nodes (figure 4b), and the measured steps.

PLOT_CURVES = ((BASELINE, "conventional NICs"), (NIC, "smart NICs"), (NIC_BFP, "smart NICs with BFP"))


def plot(rows: Sequence[Row]) -> bytes:
    """Return a picture of each batch's curves, and one of the steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    batches = sorted({row["batch"] for row in select(rows, part=SCALING)})
    steps = select(rows, part=STEP)
    count = max(1, len(batches) + bool(steps))
    picture, canvas = io.BytesIO(), Figure(figsize=(4.5 * count, 3.4), dpi=110, layout="constrained")
    FigureCanvasAgg(canvas)
    places = canvas.subplots(1, count, squeeze=False)[0]
    for place, batch in zip(places, batches, strict=False):
        points = select(rows, part=SCALING, batch=batch)
        nodes = [row["nodes"] for row in points]
        place.plot(nodes, nodes, "k--", linewidth=0.8, label="ideal")
        for name, label in PLOT_CURVES:
            place.plot(nodes, [row[name] for row in points], "o-", markersize=3, label=label)
        place.set_title(f"batch {batch}")
        place.set_xlabel("nodes")
        place.set_ylabel("throughput over one node's")
        place.legend(frameon=False, fontsize="x-small")
    if steps:
        at = range(len(steps))
        known = parameters(select(rows, part=CALIBRATION)[0])
        names = [f"{row['hosts']} hosts, {row['method']}, {row['codec']}" for row in steps]
        places[-1].barh(at, [fmean(row["step_s"]) for row in steps], label="measured")
        places[-1].plot([predicted(known, row).total_s for row in steps], at, "kx", label="predicted")
        places[-1].set_yticks(at, names, fontsize="xx-small")
        places[-1].invert_yaxis()
        places[-1].set_xlabel("seconds of a step")
        places[-1].legend(frameon=False, fontsize="x-small")
    canvas.savefig(picture, format="png")
    return picture.getvalue()
