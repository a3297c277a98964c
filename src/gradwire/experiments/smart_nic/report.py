"""The tables: constants and figures, rings, measured steps, and the claims."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.experiments.claims_table import claims_table
from gradwire.experiments.experiment import Row
from gradwire.experiments.smart_nic.options import (
    CONSTANT,
    FIGURE,
    IDENTITY,
    OVERLAPPED,
    RING,
    SCALING,
    STEP,
    part_of,
)
from gradwire.experiments.smart_nic.published import BASELINE, NIC, NIC_BFP
from gradwire.experiments.smart_nic.verdict import claims, error
from gradwire.tables import Column, Table, figure
from gradwire.timing.closed_form.smart_nic_figures import ERRATA

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
    Column.of_text("method"),
    Column.of_text("codec"),
    Column("measured", "ms"),
    Column("fastest", "ms"),
    Column("slowest", "ms"),
    Column("predicted", "ms"),
    Column("error", "%"),
    Column("speed-up"),
)


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return the tables of the parts that were performed."""
    parts: list[str | Table] = []
    if part_of(rows, FIGURE):
        parts += [*_paper(rows), ""]
    rings, steps = part_of(rows, RING), part_of(rows, STEP)
    if rings:
        words = rings[0]["chunk_words"]
        title = f"cycles of the gateware's ring, chunks of {words} words of 256 bits"
        parts += [title, "", Table(RINGS, [_ring(row) for row in rings]), ""]
    if steps:
        parts += [_network(steps[0]), "", Table(STEPS, [_step(row, steps) for row in steps]), ""]
    return [*parts, claims_table([*claims(rows)])]


def _paper(rows: Sequence[Row]) -> list[str | Table]:
    constants = [
        (row["what"], row["value"], f"omitted; {row['source']}" if row["omitted"] else row["source"])
        for row in part_of(rows, CONSTANT)
    ]
    figures = [
        (
            row["what"],
            f"{row['published']:g}",
            f"{row['model']:.3g}",
            f"{100 * error(row):+.1f}",
            "calibrated" if row["calibrated"] else "predicted",
        )
        for row in part_of(rows, FIGURE)
    ]
    curves = [
        (
            str(row["batch"]),
            str(row["nodes"]),
            *(f"{row[name]:.2f}" for name in (BASELINE, NIC, NIC_BFP)),
            f"{row[NIC_BFP] / row[BASELINE]:.2f}x",
        )
        for row in part_of(rows, SCALING)
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


def _network(row: Row) -> str:
    return (
        f"steps of {row['layers']} layers of {row['width']} x {row['width']} weights, batch {row['batch']}, "
        f"{row['hosts']} hosts at {row['rate']}, devices of {1e-9 * row['flops_per_s']:.2f} Gflop/s"
    )


def _step(row: Row, steps: Sequence[Row]) -> tuple[str, ...]:
    before = next(each for each in steps if (each["method"], each["codec"]) == (OVERLAPPED, IDENTITY))
    times = ("measured_s", "fastest_s", "slowest_s", "predicted_s")
    return (
        row["method"],
        row["codec"],
        *(figure(1e3 * row[name]) for name in times),
        f"{100 * error(row):+.1f}",
        f"{before['measured_s'] / row['measured_s']:.2f}x",
    )
