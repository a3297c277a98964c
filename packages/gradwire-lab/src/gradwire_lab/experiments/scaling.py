"""How the exchange time of AlexNet's gradients grows with the hosts, with a ring and with a server.

The time stays flat for a ring and grows with the hosts for a server, as in INCEPTIONN, figure 15, and the
measurement study, table 1. Two models are compared with the measured times: the closed form, with the
latency and rate that the same hosts have measured, and the replay.
"""

from __future__ import annotations

import argparse
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.cli.parser import listed, whole_numbers
from gradwire.codecs import parse
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.tables import Column, Table, figure
from gradwire.timing.formulas import AlphaBetaGamma, ring_s, star_s
from gradwire.timing.replay import replay
from gradwire.units import exact_size, parse_size
from gradwire_lab.experiments.experiment import Cell, Experiment, Report, Row, cells_of, select
from gradwire_lab.experiments.hosts import check_networks, measure_cells

if TYPE_CHECKING:  # torch's import takes seconds: only the hosts need it
    from gradwire_lab.experiments.hosts.ranks import Ranks

FORMULAS = {"ring": ring_s, "star": star_s}
SEGMENT_NBYTES = 1 << 20
BUDGET_S = 10.0
"""For all exchanges of a cell: one at least, and 5 at most."""
COLUMNS = (
    Column.of_text("algorithm"),
    Column("hosts"),
    Column("measured", "s"),
    Column("of the", "fewest"),
    Column("formula", "s"),
    Column("error", "%"),
    Column("replay", "s"),
    Column("error", "%"),
    Column("line", "Mbit/s"),
)


@dataclass(frozen=True)
class ScalingOptions:
    """Numbers of hosts, the rate of every host, and the gradient's bytes: AlexNet's, as in INCEPTIONN."""

    hosts: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8)
    rate: str = "500mbit"
    nbytes: int = 233_000_000

    def __post_init__(self) -> None:
        check_networks([(hosts, self.rate) for hosts in self.hosts])
        listed((self.nbytes,))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the experiment's options."""
    hosts = ",".join(map(str, ScalingOptions.hosts))
    parser.add_argument("--hosts", metavar="LIST", default=hosts, help=f"numbers of hosts ({hosts})")
    parser.add_argument(
        "--rate", metavar="RATE", default=ScalingOptions.rate, help=f"of every host ({ScalingOptions.rate})"
    )
    parser.add_argument("--nbytes", metavar="SIZE", default="233MB", help="of the gradient (233MB)")


def read(words: argparse.Namespace) -> ScalingOptions:
    """Return the options. Raises ``SpecError``."""
    return ScalingOptions(whole_numbers("--hosts", words.hosts), words.rate, parse_size(words.nbytes))


def cells(options: ScalingOptions) -> list[Cell]:
    """Return a cell for each number of hosts and algorithm."""
    common = {"rate": options.rate, "nbytes": options.nbytes}
    return cells_of(common, hosts=options.hosts, algorithm=FORMULAS)


def run(_options: ScalingOptions, cells: Sequence[Cell], _before: Sequence[Row], report: Report) -> None:
    """Measure cells in a testbed for each number of hosts."""
    measure_cells(__name__, cells, report)


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
    """Return a row for each algorithm and number of hosts; times are compared with the fewest hosts'."""
    ordered = sorted(rows, key=lambda row: (row["algorithm"], row["hosts"]))
    fewest: dict[str, float] = {}
    found = []
    for row in ordered:
        measured_s = row["measured_s"]
        base_s = fewest.setdefault(row["algorithm"], measured_s)
        errors = [f"{100 * (row[model] / measured_s - 1):+.1f}" for model in ("formula_s", "replay_s")]
        found.append(
            (
                row["algorithm"],
                str(row["hosts"]),
                figure(measured_s),
                f"{measured_s / base_s:.2f}x",
                figure(row["formula_s"]),
                errors[0],
                figure(row["replay_s"]),
                errors[1],
                figure(8e-6 * row["line_nbytes_per_s"]),
            )
        )
    title = (
        f"exchange of {exact_size(rows[0]['nbytes'])}, uncompressed, in segments of "
        f"{exact_size(SEGMENT_NBYTES)}, {rows[0]['rate']} a host"
    )
    return [title, "", Table(COLUMNS, found)]


def plot(rows: Sequence[Row]) -> bytes:
    """Return the measured and the replayed times over the number of hosts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture, canvas = io.BytesIO(), Figure(figsize=(6, 4), dpi=140, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    for algorithm in FORMULAS:
        points = sorted(select(rows, algorithm=algorithm), key=lambda row: row["hosts"])
        hosts = [row["hosts"] for row in points]
        (line,) = axes.plot(
            hosts, [row["measured_s"] for row in points], "o-", label=f"{algorithm}, measured"
        )
        replayed = [row["replay_s"] for row in points]
        axes.plot(hosts, replayed, "x:", color=line.get_color(), label=f"{algorithm}, replay")
    axes.set_xlabel("hosts")
    axes.set_ylabel(f"exchange of {exact_size(rows[0]['nbytes'])} at {rows[0]['rate']} [s]")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    canvas.savefig(picture, format="png")
    return picture.getvalue()


EXPERIMENT = Experiment(
    name="scaling",
    question="how does an exchange's time grow with the number of hosts?",
    add_arguments=add_arguments,
    read=read,
    cells=cells,
    run=run,
    table=table,
    plot=plot,
)
