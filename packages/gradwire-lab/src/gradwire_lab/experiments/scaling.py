"""The time of an exchange of AlexNet's gradients by number of hosts, with a ring and with a server.

A ring's time stays flat, and a server's grows, as in INCEPTIONN's figure 15 and the study's table 1. Both are
compared with a closed form and a replay, with the latency and rate measured on the same hosts.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.cli.lists import listed
from gradwire.codecs import parse
from gradwire.line_rate.page import new_figure, png_of
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.tables import Column, Table, figure
from gradwire.timing.replay import replay
from gradwire.units import exact_size, parse_size
from gradwire_lab.closed_forms.formulas import AlphaBetaGamma, ring_s, star_s
from gradwire_lab.columns import Columns, table_of, text_of
from gradwire_lab.experiments.answer import Answer
from gradwire_lab.experiments.experiment import (
    Cell,
    CheckedOptions,
    Experiment,
    Row,
    cells_of,
    option,
    select,
)
from gradwire_lab.experiments.hosts import check_networks, measured_by

if TYPE_CHECKING:  # these modules import torch, which only the hosts need
    from gradwire_lab.experiments.hosts.ranks import Ranks

FORMULAS = {"ring": ring_s, "star": star_s}
SEGMENT_NBYTES = 1 << 20
BUDGET_S = 10.0
"""The time budget of a cell's 1 to 5 exchanges, in seconds."""
COLUMNS: Columns[Row] = (
    (Column.of_text("algorithm"), text_of("algorithm")),
    (Column("hosts"), text_of("hosts")),
    (Column("measured", "s"), lambda row: figure(row["measured_s"])),
    (Column("of the", "fewest"), lambda row: f"{row['measured_s'] / row['fewest_s']:.2f}x"),
    (Column("formula", "s"), lambda row: figure(row["formula_s"])),
    (Column("error", "%"), lambda row: _error(row, "formula_s")),
    (Column("replay", "s"), lambda row: figure(row["replay_s"])),
    (Column("error", "%"), lambda row: _error(row, "replay_s")),
    (Column("line", "Mbit/s"), lambda row: figure(8e-6 * row["line_nbytes_per_s"])),
)


@dataclass(frozen=True)
class ScalingOptions(CheckedOptions):
    """The options: numbers of hosts, a host's link rate, and the gradient's bytes (by default AlexNet's)."""

    hosts: tuple[int, ...] = option((2, 3, 4, 5, 6, 7, 8), "number of hosts, or several", value="N")
    rate: str = option("500mbit", "rate of each host's link", value="RATE")
    nbytes: int = option(233_000_000, "bytes of the gradient", shown="233MB", value="SIZE", read=parse_size)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_networks([(hosts, self.rate) for hosts in self.hosts])
        listed((self.nbytes,))


def cells(options: ScalingOptions) -> list[Cell]:
    """Return a cell for each number of hosts and each algorithm."""
    common = {"rate": options.rate, "nbytes": options.nbytes}
    return cells_of(common, hosts=options.hosts, algorithm=FORMULAS)


def measure(ranks: Ranks, cells: Sequence[Cell]) -> None:
    """Measure the cells of one network, as one of its ranks."""
    environment = ranks.environment(["identity"])
    for cell in cells:
        algorithm, count = cell["algorithm"], cell["nbytes"] // FLOAT_NBYTES
        plan = Plan(parse("identity"), algorithm, SEGMENT_NBYTES)
        seconds = ranks.time_s(plan, count, BUDGET_S, least=1, most=5)
        if environment is None:
            continue
        line = environment.line
        link = AlphaBetaGamma(line.latency_s, line.beta_s_per_nbyte)
        predicted = replay(algorithm, ranks.world, count, SEGMENT_NBYTES, "identity", environment)
        figures = {
            "measured_s": statistics.median(seconds),
            "formula_s": FORMULAS[algorithm](ranks.world, cell["nbytes"], link),
            "replay_s": predicted.total_s,
            "line_latency_s": line.latency_s,
            "line_nbytes_per_s": line.nbytes_per_s,
        }
        ranks.report(cell, figures)


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return a row per algorithm and number of hosts, with times relative to the fewest hosts."""
    ordered = sorted(rows, key=lambda row: (row["algorithm"], row["hosts"]))
    fewest: dict[str, float] = {}
    found = [{**row, "fewest_s": fewest.setdefault(row["algorithm"], row["measured_s"])} for row in ordered]
    title = (
        f"exchange of {exact_size(rows[0]['nbytes'])}, uncompressed, in segments of "
        f"{exact_size(SEGMENT_NBYTES)}, {rows[0]['rate']} a host"
    )
    return [title, "", table_of(COLUMNS, found)]


def _error(row: Row, model: str) -> str:
    return f"{100 * (row[model] / row['measured_s'] - 1):+.1f}"


def plot(rows: Sequence[Row]) -> bytes:
    """Return a PNG of the measured and replayed times by number of hosts."""
    canvas = new_figure((6, 4))
    axes = canvas.subplots()
    for algorithm in FORMULAS:
        points = sorted(select(rows, algorithm=algorithm), key=lambda row: row["hosts"])
        hosts = [row["hosts"] for row in points]
        measured, replayed = ([row[name] for row in points] for name in ("measured_s", "replay_s"))
        (line,) = axes.plot(hosts, measured, "o-", label=f"{algorithm}, measured")
        axes.plot(hosts, replayed, "x:", color=line.get_color(), label=f"{algorithm}, replay")
    axes.set_xlabel("hosts")
    axes.set_ylabel(f"exchange of {exact_size(rows[0]['nbytes'])} at {rows[0]['rate']} [s]")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    return png_of(canvas)


EXPERIMENT = Experiment(
    name="scaling",
    question="how does an exchange's time grow with the number of hosts?",
    answer=Answer("measured", ("algorithm", "hosts")),
    options=ScalingOptions,
    cells=cells,
    run=measured_by(__name__),
    table=table,
    plot=plot,
)
