"""The errors of predicted exchange times, and the extra time of plans chosen by prediction.

In every network (hosts and rate), the link, the hosts, and the codecs are measured first. Then each plan is
timed, and its prediction is compared with the median time. For every network and size, a plan is *chosen* by
prediction alone, and its time is compared with that of the best measured plan.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradwire.cli.lists import between_commas, listed
from gradwire.codecs import parse
from gradwire.errors import SpecError
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.tables import Column, Table, figure
from gradwire.timing.replay import replay
from gradwire.units import exact_size, parse_whole
from gradwire_lab.columns import Columns, ms_of, table_of, text_of
from gradwire_lab.experiments.answer import Answer
from gradwire_lab.experiments.experiment import (
    Cell,
    CheckedOptions,
    Experiment,
    Report,
    Row,
    option,
    sizes_between_commas,
)
from gradwire_lab.experiments.hosts import check_networks, measure_cells

if TYPE_CHECKING:  # torch's import takes seconds: only the hosts need it
    from gradwire.timing.environment import Environment
    from gradwire_lab.experiments.hosts.ranks import Ranks

ALGORITHMS = ("backend", "ring", "butterfly", "tree", "star", "hierarchical")
CODECS = ("identity", "errbound:2^-10", "quantize:8")
SHARDED = "sharded"
"""A value of ``algorithm`` for a reduce-scatter with the codec, and an all-gather of weight updates."""
LEARNING_RATE = 1e-3
"""The learning rate of the weights in a sharded exchange."""
SEGMENT_NBYTES = 1 << 20
LEAST_HOSTS = {"hierarchical": 4}
BUDGET_S = 2.0
"""The seconds for all exchanges of a cell, of which there are 3 to 15."""
GOOD = 0.03
"""The largest share by which a good choice may be slower than the best plan."""
POINTS: Columns[Row] = (
    (Column.of_text("algorithm"), text_of("algorithm")),
    (Column.of_text("codec"), text_of("codec")),
    (Column("measured", "ms"), ms_of("measured_s")),
    (Column("fastest", "ms"), ms_of("fastest_s")),
    (Column("slowest", "ms"), ms_of("slowest_s")),
    (Column("predicted", "ms"), ms_of("predicted_s")),
    (Column("error", "%"), lambda row: f"{100 * error(row):+.1f}"),
)
CHOICES = (
    Column("codecs"),
    Column.of_text("chosen plan"),
    Column("measured", "ms"),
    Column.of_text("best plan"),
    Column("measured", "ms"),
    Column("loss", "%"),
)


def _networks(text: str) -> tuple[tuple[int, str], ...]:
    return tuple(dict.fromkeys(map(_network, between_commas(text))))


def _network(text: str) -> tuple[int, str]:
    hosts, _, rate = text.partition(":")
    number = parse_whole(hosts)
    if number is None or not rate:
        raise SpecError(
            f"expected a list of HOSTS:RATE for --networks, such as 4:1gbit,8:1gbit, got {text!r}"
        )
    return number, rate


@dataclass(frozen=True)
class PredictionOptions(CheckedOptions):
    """The options: networks, as numbers of hosts and rates, and bucket sizes.

    By default, rates are low enough for two cores that all hosts share. At higher rates, a testbed measures
    its cores instead of the network.
    """

    networks: tuple[tuple[int, str], ...] = option(
        ((2, "200mbit"), (3, "200mbit"), (4, "200mbit"), (4, "100mbit"), (6, "100mbit"), (8, "100mbit")),
        "HOSTS:RATE,...",
        shown="2:200mbit to 8:100mbit",
        read=_networks,
    )
    sizes: tuple[int, ...] = option(
        (2 << 20, 8 << 20), "sizes, of buckets", shown="2MiB,8MiB", read=sizes_between_commas
    )
    sharded: bool = option(False, "time sharded exchanges, too", name="--with-sharded", is_switch=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_networks(self.networks)
        listed(self.sizes)


def cells(options: PredictionOptions) -> list[Cell]:
    """Return a cell for each network, size, algorithm, and codec.

    ``backend`` is used only with ``identity``.
    """
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
        for algorithm in (*ALGORITHMS, *([SHARDED] if options.sharded else []))
        for codec in CODECS
        if hosts >= LEAST_HOSTS.get(algorithm, 1) and (algorithm != "backend" or codec == CODECS[0])
    ]


def run(_options: PredictionOptions, cells: Sequence[Cell], _before: Sequence[Row], report: Report) -> None:
    """Measure the cells in one testbed per network."""
    measure_cells(__name__, cells, report)


def measure(ranks: Ranks, cells: Sequence[Cell]) -> None:
    """Measure and predict the cells of one network, as one of its ranks."""
    environment = ranks.environment(list(CODECS))
    for cell in cells:
        algorithm, codec, count = cell["algorithm"], cell["codec"], cell["nbytes"] // FLOAT_NBYTES
        if _is_sharded(cell):
            seconds, predicted_s = _sharded(ranks, codec, count, environment)
        else:
            seconds = ranks.time_s(Plan(parse(codec), algorithm, SEGMENT_NBYTES), count, BUDGET_S, least=3)
            predicted_s = 0.0
            if environment is not None:
                done = replay(algorithm, ranks.world, count, SEGMENT_NBYTES, codec, environment)
                predicted_s = done.total_s
        if environment is None:
            continue
        figures = {
            "measured_s": statistics.median(seconds),
            "fastest_s": min(seconds),
            "slowest_s": max(seconds),
            "predicted_s": predicted_s,
            "line_latency_s": environment.line.latency_s,
            "line_nbytes_per_s": environment.line.nbytes_per_s,
        }
        ranks.report(cell, figures)


def _sharded(
    ranks: Ranks, codec: str, count: int, environment: Environment | None
) -> tuple[list[float], float]:
    """Return the seconds of ``Sharded`` steps with almost no computation, and their predicted seconds."""
    import torch

    from gradwire.planner.candidates import Workload
    from gradwire.planner.encodings import WEIGHTS, measure_weights
    from gradwire.planner.exchange_times import Family
    from gradwire.planner.predict import Predictor
    from gradwire.sharded import Sharded
    from gradwire_lab.experiments.hosts.ranks import gradient

    plan = Plan(parse(codec), segment_nbytes=SEGMENT_NBYTES, exchange=SHARDED)
    weights, own = torch.nn.Parameter(20 * gradient(count, 1)), ranks.gradient(count)
    model = torch.nn.ParameterList([weights])

    def loss() -> torch.Tensor:
        return (weights * own).sum()

    def time_s(run: Callable[[], object]) -> list[float]:
        return ranks.repeat_s(run, budget_s=BUDGET_S / 3, least=3, most=15)

    backward_s = statistics.median(time_s(lambda: torch.autograd.backward(loss())))
    update_s = statistics.median(time_s(torch.optim.Adam([weights], lr=0.0).step))
    weights.grad = None
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    with Sharded(model, optimizer, plan, group=ranks.link) as method:
        for _ in range(3):  # full copies, and an optimizer's first steps
            method.step(loss)
        seconds = time_s(lambda: method.step(loss))
    if environment is None:
        return seconds, 0.0
    samples = [gradient(count, seed) for seed in range(4)]
    costs = {**environment.codecs, WEIGHTS: measure_weights(samples, LEARNING_RATE, 1)}
    family = Family(replace(environment, codecs=costs))
    workload = Workload((count,), backward_s=backward_s, update_s=update_s)
    return seconds, Predictor(workload, ranks.world, family).predict(plan).step_s


def error(row: Row) -> float:
    """Return the prediction's error as a share of the measured time."""
    return float(row["predicted_s"] / row["measured_s"] - 1)


def choose(rows: Sequence[Row]) -> Row:
    """Return the row that the planner chooses: the simplest plan that ties with the fastest prediction."""
    from gradwire.planner.predict import UNCERTAINTY

    fastest_s = min(row["predicted_s"] for row in rows)
    ties = [row for row in rows if row["predicted_s"] * (1 - UNCERTAINTY) <= fastest_s]
    return min(ties, key=lambda row: (CODECS.index(row["codec"]), ALGORITHMS.index(row["algorithm"])))


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return measurements and choices per network and size, under three lists of codecs, and a summary."""
    there = defaultdict(list)
    for row in rows:
        there[row["hosts"], row["rate"], row["nbytes"]].append(row)
    found: list[str | Table] = []
    losses: list[float] = []
    for (hosts, rate, nbytes), group in there.items():
        found += [f"{hosts} hosts at {rate}, {exact_size(nbytes)}:", "", table_of(POINTS, group), ""]
        found += [Table(CHOICES, _choices([row for row in group if not _is_sharded(row)], losses)), ""]
    errors = sorted(abs(error(row)) for row in rows)
    good = sum(loss <= GOOD for loss in losses)
    return [
        *found,
        f"Error of {len(rows)} predictions: median {100 * errors[len(errors) // 2]:.1f} %, 90th percentile "
        f"{100 * errors[int(0.9 * len(errors))]:.1f} %, largest {100 * errors[-1]:.1f} %.",
        "",
        f"{good} of {len(losses)} choices by prediction are within {100 * GOOD:.0f} % of the best plan.",
    ]


def _choices(group: Sequence[Row], losses: list[float]) -> list[tuple[str, ...]]:
    """Return the choices among these rows, and append their extra times to ``losses``."""
    found = []
    for number in range(1, len(CODECS) + 1):
        allowed = [row for row in group if row["codec"] in CODECS[:number]]
        chosen, best = choose(allowed), min(allowed, key=lambda row: row["measured_s"])
        losses.append(chosen["measured_s"] / best["measured_s"] - 1)
        plans = [text for row in (chosen, best) for text in (_plan(row), _ms(row["measured_s"]))]
        found.append((str(number), *plans, f"{100 * losses[-1]:.1f}"))
    return found


def _is_sharded(row: Row) -> bool:
    """Return whether a row's exchange is sharded, and so not comparable with all-reduces."""
    return bool(row["algorithm"] == SHARDED)


def _plan(row: Row) -> str:
    return f"{row['algorithm']} {row['codec']}"


def _ms(seconds: float) -> str:
    return figure(1e3 * seconds)


EXPERIMENT = Experiment(
    name="prediction",
    question="how close are predicted times, and what do choices lose?",
    answer=Answer("error", ("algorithm", "codec")),
    options=PredictionOptions,
    cells=cells,
    run=run,
    table=table,
)
