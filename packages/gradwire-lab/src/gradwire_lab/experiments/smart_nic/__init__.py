"""An all-reduce in the NIC: a simulated circuit, a model, and a testbed, compared with published figures.

For steps, the model is calibrated on a different configuration. Source: Ma and others (arXiv 2204.10943).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from gradwire.line_rate.page import new_figure, png_of
from gradwire.tables import Column, Table, figure
from gradwire_lab.closed_forms.smart_nic_figures import ERRATA
from gradwire_lab.columns import Columns, table_of, text_of
from gradwire_lab.experiments.answer import Answer
from gradwire_lab.experiments.claim import claims_parts
from gradwire_lab.experiments.experiment import Cell, Experiment, Reporter, Row, select
from gradwire_lab.experiments.hosts import measure_cells
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
    SmartNicOptions,
    cells,
    published,
)
from gradwire_lab.experiments.smart_nic.verdict import claims, error, parameters, predicted

# The tables: constants and figures, rings, measured steps, and claims.

CONSTANTS: Columns[Row] = (
    (Column.of_text("constant"), text_of("what")),
    (Column.of_text("value"), text_of("value")),
    (Column.of_text("from"), lambda row: f"omitted; {row['source']}" if row["omitted"] else row["source"]),
)
FIGURES: Columns[Row] = (
    (Column.of_text("figure of the paper"), text_of("what")),
    (Column("published"), lambda row: f"{row['published']:g}"),
    (Column("model"), lambda row: f"{row['model']:.3g}"),
    (Column("error", "%"), lambda row: f"{100 * error(row):+.1f}"),
    (Column.of_text("how"), text_of("how")),
)
CURVES: Columns[Row] = (
    (Column("batch"), text_of("batch")),
    (Column("nodes"), text_of("nodes")),
    (Column("baseline"), lambda row: f"{row[BASELINE]:.2f}"),
    (Column("NIC"), lambda row: f"{row[NIC]:.2f}"),
    (Column("NIC + BFP"), lambda row: f"{row[NIC_BFP]:.2f}"),
    (Column("speed-up"), lambda row: f"{row[NIC_BFP] / row[BASELINE]:.2f}x"),
)
RINGS: Columns[Row] = (
    (Column.of_text("codec"), text_of("codec")),
    (Column("nodes"), text_of("nodes")),
    (Column("all-reduces"), text_of("rounds")),
    (Column("T_ring"), lambda row: f"{row['ring_cycles']:.0f}"),
    (Column("T_add"), lambda row: f"{row['add_cycles']:.0f}"),
    (Column("T_mem"), lambda row: f"{row['memory_cycles']:.0f}"),
    (Column("latency"), lambda row: f"{row['latency_cycles']:.0f}"),
    (Column("model"), lambda row: f"{row['model_cycles']:.0f}"),
    (Column("simulated"), lambda row: f"{row['cycles']:.0f}"),
    (Column("error", "%"), lambda row: f"{100 * error(row):+.2f}"),
)
STEPS: Columns[Row] = (
    *((Column(name), text_of(name)) for name in ("hosts", "rate", "width", "batch")),
    *((Column.of_text(name), text_of(name)) for name in ("method", "codec")),
    (Column("measured", "ms"), lambda row: figure(1e3 * fmean(row["step_s"]))),
    (Column("predicted", "ms"), lambda row: figure(1e3 * row["predicted_s"])),
    (Column("error", "%"), lambda row: f"{100 * row['error']:+.1f}"),
    (Column("accuracy"), lambda row: f"{fmean(row['accuracies']):.3f}"),
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
        parts += [title, "", table_of(RINGS, rings), ""]
    for calibration in calibrations:
        known = parameters(calibration)
        steps = [
            {**row, "predicted_s": predicted(known, row).total_s, "error": error(row, calibration)}
            for row in select(rows, part=STEP)
        ]
        parts += [_calibrated(calibration), "", table_of(STEPS, steps), ""]
    judged = claims(rows)
    learned = [each.in_words() for claim in judged for each in claim.rests_on if each.problem]
    return [*parts, *claims_parts(judged), *dict.fromkeys(learned)]


def _paper(rows: Sequence[Row]) -> list[str | Table]:
    return [
        table_of(CONSTANTS, select(rows, part=CONSTANT)),
        "",
        table_of(FIGURES, select(rows, part=FIGURE)),
        "",
        "throughput over that of one node (figure 4b), modelled",
        "",
        table_of(CURVES, select(rows, part=SCALING)),
        "",
        "Errata of the paper: " + " ".join(ERRATA),
    ]


def _calibrated(row: Row) -> str:
    known = parameters(row)
    return (
        f"steps of {row['layers']} layers on {row['data']}, predicted from {row['hosts']} hosts at "
        f"{row['rate']} (width {row['width']}, batch {row['batch']}): a core computes "
        f"{1e-09 * known.flops_per_s:.0f} Gflop/s and adds {1e-09 * known.adds_per_s:.2f} G values/s, "
        f"alpha is {known.usable_share:.2f}"
    )


# The plot: throughput over the number of nodes (figure 4b), and the measured steps.

PLOT_CURVES = ((BASELINE, "conventional NICs"), (NIC, "smart NICs"), (NIC_BFP, "smart NICs with BFP"))


def plot(rows: Sequence[Row]) -> bytes:
    """Return a PNG with one panel of curves per batch, and one panel of steps."""
    batches = sorted({row["batch"] for row in select(rows, part=SCALING)})
    steps = select(rows, part=STEP)
    count = max(1, len(batches) + bool(steps))
    canvas = new_figure((4.5 * count, 3.4))
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
    return png_of(canvas)


# The experiment.

__all__ = ["EXPERIMENT", "SmartNicOptions"]

STEPS_MODULE = "gradwire_lab.experiments.smart_nic.steps"
"""The name of the module that runs steps on the hosts; importing the module here would import torch."""


def _run(_options: SmartNicOptions, cells: Sequence[Cell], _before: Sequence[Row], report: Reporter) -> None:
    """Compute the model's rows, simulate the rings, and measure the steps."""
    published([cell for cell in cells if cell["part"] not in (RING, CALIBRATION, STEP)], report)
    rings = select(cells, part=RING)
    if rings:
        from gradwire_lab.experiments.smart_nic.rings import simulate  # this module imports amaranth

        simulate(rings, report)
    measure_cells(STEPS_MODULE, [cell for cell in cells if cell["part"] in (CALIBRATION, STEP)], report)


EXPERIMENT = Experiment(
    name="smart-nic",
    question="what does an all-reduce in the NIC save, as published?",
    answer=Answer("speed-up", ("batch", "nodes")),
    options=SmartNicOptions,
    cells=cells,
    run=_run,
    table=table,
    plot=plot,
    version=2,
)
