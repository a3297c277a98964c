"""How close predicted exchange times are to measured ones, and what plans chosen by prediction lose.

In every network (hosts and rate), the line, the hosts, and the codecs are measured first; then each plan is
timed, and its prediction compared with the median. For every network and size, prediction alone *chooses* a
plan; its distance from the best measured plan is what a user would lose.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.benchmark.lists import listed
from gradwire.codecs import parse
from gradwire.errors import SpecError
from gradwire.experiments.experiment import Cell, Experiment, Report, Row
from gradwire.experiments.hosts.network import check_networks, measure_cells
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.tables import Column, Table, figure
from gradwire.timing.replay.replay import replay
from gradwire.units import exact_size, parse_size

if TYPE_CHECKING:  # torch's import takes seconds: only the hosts need it
    from gradwire.experiments.hosts.ranks import Ranks

ALGORITHMS = ("backend", "ring", "butterfly", "tree", "star", "hierarchical")
CODECS = ("identity", "errbound:2^-10", "quantize:8")
SEGMENT_NBYTES = 1 << 20
LEAST_HOSTS = {"hierarchical": 4}
BUDGET_S = 2.0
"""For all exchanges of a cell: 3 at least, and 15 at most."""
GOOD = 0.03
"""A choice is good that loses no more than this share to the best plan."""
POINTS = (
    Column("hosts"),
    Column("rate"),
    Column("size"),
    Column.of_text("algorithm"),
    Column.of_text("codec"),
    Column("measured", "ms"),
    Column("fastest", "ms"),
    Column("slowest", "ms"),
    Column("predicted", "ms"),
    Column("error", "%"),
)
CHOICES = (
    Column("hosts"),
    Column("rate"),
    Column("size"),
    Column("codecs"),
    Column.of_text("chosen plan"),
    Column("measured", "ms"),
    Column.of_text("best plan"),
    Column("measured", "ms"),
    Column("loss", "%"),
)


@dataclass(frozen=True)
class Options:
    """Networks, as hosts and rate, and sizes of buckets.

    The networks are as fast as two cores that all hosts share can feed: where the cores are the limit, a
    testbed is no network.
    """

    networks: tuple[tuple[int, str], ...] = (
        (2, "200mbit"),
        (3, "200mbit"),
        (4, "200mbit"),
        (4, "100mbit"),
        (6, "100mbit"),
        (8, "100mbit"),
    )
    sizes: tuple[int, ...] = (2 << 20, 8 << 20)

    def __post_init__(self) -> None:
        check_networks(self.networks)
        listed(self.sizes)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the experiment's options."""
    networks = ",".join(f"{hosts}:{rate}" for hosts, rate in Options.networks)
    parser.add_argument(
        "--networks", metavar="LIST", default=networks, help="HOSTS:RATE,... (2:200mbit to 8:100mbit)"
    )
    parser.add_argument("--sizes", metavar="LIST", default="2MiB,8MiB", help="of buckets (2MiB,8MiB)")


def read(words: argparse.Namespace) -> Options:
    """Return the options. Raises ``SpecError``."""
    networks = tuple(dict.fromkeys(_network(text) for text in words.networks.split(",")))
    return Options(networks, listed(tuple(parse_size(text) for text in words.sizes.split(","))))


def _network(text: str) -> tuple[int, str]:
    hosts, _, rate = text.partition(":")
    if not hosts.isdecimal() or not rate:
        raise SpecError(f"--networks takes HOSTS:RATE with commas between, as in 4:1gbit, but {text!r} came")
    return int(hosts), rate


def cells(options: Options) -> list[Cell]:
    """Return a cell for each network, size, algorithm, and codec; ``backend`` only sums uncompressed."""
    return [
        {
            "hosts": hosts,
            "rate": rate,
            "nbytes": nbytes,
            "algorithm": algorithm,
            "codec": codec,
            "segment_nbytes": SEGMENT_NBYTES,
        }
        for hosts, rate in options.networks
        for nbytes in options.sizes
        for algorithm in ALGORITHMS
        for codec in CODECS
        if hosts >= LEAST_HOSTS.get(algorithm, 1) and (algorithm != "backend" or codec == CODECS[0])
    ]


def run(_options: Options, cells: Sequence[Cell], _before: Sequence[Row], report: Report) -> None:
    """Measure cells in a testbed for each network."""
    measure_cells(__name__, cells, report)


def measure(ranks: Ranks, cells: Sequence[Cell]) -> None:
    """Measure and predict the cells of one network, as one of its ranks."""
    environment = ranks.environment(list(CODECS))
    for cell in cells:
        algorithm, codec, count = cell["algorithm"], cell["codec"], cell["nbytes"] // FLOAT_NBYTES
        seconds = ranks.time_s(Plan(parse(codec), algorithm, SEGMENT_NBYTES), count, BUDGET_S, least=3)
        if environment is None:
            continue
        predicted = replay(algorithm, ranks.world, count, SEGMENT_NBYTES, codec, environment)
        figures = {
            "measured_s": statistics.median(seconds),
            "fastest_s": min(seconds),
            "slowest_s": max(seconds),
            "predicted_s": predicted.total_s,
            "line_latency_s": environment.line.latency_s,
            "line_nbytes_per_s": environment.line.nbytes_per_s,
        }
        ranks.report(cell, figures)


def error(row: Row) -> float:
    """Return the prediction's error as a share of the measured time."""
    return float(row["predicted_s"] / row["measured_s"] - 1)


def choose(rows: Sequence[Row]) -> Row:
    """Return the row that the planner takes: the simplest of those that tie with the fastest."""
    from gradwire.planner.search.select import UNCERTAINTY

    fastest_s = min(row["predicted_s"] for row in rows)
    ties = [row for row in rows if row["predicted_s"] * (1 - UNCERTAINTY) <= fastest_s]
    return min(ties, key=lambda row: (CODECS.index(row["codec"]), ALGORITHMS.index(row["algorithm"])))


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return all points, the choices by prediction under three accuracy budgets, and a summary of both."""
    points = [(*_place(row), row["algorithm"], row["codec"], *_times(row)) for row in rows]
    errors = sorted(abs(error(row)) for row in rows)
    there = defaultdict(list)
    for row in rows:
        there[row["hosts"], row["rate"], row["nbytes"]].append(row)
    choices, losses = [], []
    for group in there.values():
        for number in range(1, len(CODECS) + 1):
            allowed = [row for row in group if row["codec"] in CODECS[:number]]
            chosen, best = choose(allowed), min(allowed, key=lambda row: row["measured_s"])
            losses.append(chosen["measured_s"] / best["measured_s"] - 1)
            plans = [text for row in (chosen, best) for text in (_plan(row), _ms(row["measured_s"]))]
            choices.append((*_place(chosen), str(number), *plans, f"{100 * losses[-1]:.1f}"))
    good = sum(loss <= GOOD for loss in losses)
    return [
        Table(POINTS, points),
        "",
        f"Error of {len(rows)} predictions: median {100 * errors[len(errors) // 2]:.1f} %, 90th percentile "
        f"{100 * errors[int(0.9 * len(errors))]:.1f} %, largest {100 * errors[-1]:.1f} %.",
        "",
        Table(CHOICES, choices),
        "",
        f"{good} of {len(losses)} choices by prediction are within {100 * GOOD:.0f} % of the best plan.",
    ]


def _place(row: Row) -> tuple[str, str, str]:
    return str(row["hosts"]), row["rate"], exact_size(row["nbytes"])


def _times(row: Row) -> tuple[str, ...]:
    times = [_ms(row[name]) for name in ("measured_s", "fastest_s", "slowest_s", "predicted_s")]
    return (*times, f"{100 * error(row):+.1f}")


def _plan(row: Row) -> str:
    return f"{row['algorithm']} {row['codec']}"


def _ms(seconds: float) -> str:
    return figure(1e3 * seconds)


EXPERIMENT = Experiment(
    name="prediction",
    question="how close are predicted times, and what do choices lose?",
    add_arguments=add_arguments,
    read=read,
    cells=cells,
    run=run,
    table=table,
)
