"""The errors of predicted times, and the extra time of plans chosen by prediction.

Without a delay, a plan is one exchange; between distant hosts, it is a step with buckets in lanes. For every
network and size, the plan chosen by prediction alone is compared with the best measured plan.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradwire.cli.lists import between_commas, listed
from gradwire.codecs import parse
from gradwire.deferred import torch
from gradwire.errors import SpecError
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.tables import Column, Table, figure
from gradwire.timing.replay import replay
from gradwire.units import exact_size, format_duration, parse_duration, parse_whole
from gradwire_lab.columns import Columns, error_of, ms_of, table_of, text_of
from gradwire_lab.experiments.answer import Answer
from gradwire_lab.experiments.experiment import (
    Cell,
    CheckedOptions,
    Experiment,
    Row,
    cells_of,
    option,
    sizes_between_commas,
)
from gradwire_lab.experiments.hosts import check_networks, measured_by

if TYPE_CHECKING:  # these modules import torch, which only the hosts need
    from gradwire.timing.environment import Environment
    from gradwire_lab.experiments.hosts.ranks import Ranks

GOOD = 0.03
"""The largest share by which a good choice may be slower than the best plan."""
CODECS = ("identity", "errbound:2^-10", "quantize:8")
ALGORITHMS = ("backend", "ring", "butterfly", "tree", "star", "hierarchical")
SHARDED = "sharded"
"""A value of ``algorithm`` for a reduce-scatter with the codec, and an all-gather of weight updates."""
DISTANT_CODECS = ("identity", "fp8", "ecsq:0.25")
Network = tuple[int, str, str]
"""The number of hosts, the rate of their links, and the one-way delay of every frame (empty: no delay)."""
LEARNING_RATE = 1e-3
SEGMENT_NBYTES = 1 << 20
LEAST_HOSTS = {"hierarchical": 4}
BUDGET_S = 2.0
"""The time budget of a cell's 3 to 15 exchanges, in seconds."""
NEAR: tuple[Network, ...] = (
    (2, "200mbit", ""),
    (3, "200mbit", ""),
    (4, "200mbit", ""),
    (4, "100mbit", ""),
    (6, "100mbit", ""),
    (8, "100mbit", ""),
)
"""The networks without a delay. Their rates are low enough for two cores that all hosts share."""
DISTANT: tuple[Network, ...] = (
    (2, "50mbit", "5ms"),
    (2, "200mbit", "5ms"),
    (2, "50mbit", "25ms"),
    (2, "200mbit", "25ms"),
    (4, "50mbit", "5ms"),
    (4, "100mbit", "25ms"),
)
"""The networks between distant hosts, with round trips of 10 and 50 ms."""
GROUPS = {"near": NEAR, "distant": DISTANT}
"""The networks by the names that ``--networks`` accepts in a list."""
BUCKETS_AND_LANES = ((1, 1), (16, 1), (16, 4), (16, 16))
"""The numbers of buckets and of lanes of steps between distant hosts."""


def _networks(text: str) -> tuple[Network, ...]:
    found = [GROUPS[each] if each in GROUPS else (_network(each),) for each in between_commas(text)]
    return tuple(dict.fromkeys(network for group in found for network in group))


def _network(text: str) -> Network:
    hosts, *parts = text.split(":")
    number = parse_whole(hosts)
    if number is None or not 1 <= len(parts) <= 2 or not all(parts):
        raise SpecError(
            f"expected near, distant, or HOSTS:RATE[:DELAY] in --networks, got {text!r}; write e.g. 4:1gbit "
            "or 2:200mbit:25ms"
        )
    rate, delay = (*parts, "")[:2]
    return number, rate, delay if delay and parse_duration(delay) else ""


@dataclass(frozen=True)
class PredictionOptions(CheckedOptions):
    """The options: networks (hosts, rate, one-way delay; with a delay, whole steps), and gradient sizes."""

    networks: tuple[Network, ...] = option(
        NEAR,
        "HOSTS:RATE[:DELAY],..., near (2:200mbit to 8:100mbit), distant (2:50mbit:5ms to 4:100mbit:25ms)",
        shown="near",
        read=_networks,
    )
    sizes: tuple[int, ...] = option((2 << 20, 8 << 20), "sizes", shown="2MiB,8MiB", read=sizes_between_commas)
    sharded: bool = option(False, "time sharded exchanges, too", name="--with-sharded", is_switch=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_networks((hosts, rate, delay or "0") for hosts, rate, delay in self.networks)
        listed(self.sizes)


def cells(options: PredictionOptions) -> list[Cell]:
    """Return the exchanges of networks without a delay, and the steps of other networks."""
    return _exchanges(options) + _steps(options)


def _exchanges(options: PredictionOptions) -> list[Cell]:
    algorithms = (*ALGORITHMS, SHARDED) if options.sharded else ALGORITHMS
    found = [
        cell
        for hosts, rate, delay in options.networks
        if not delay
        for cell in cells_of(
            {"hosts": hosts, "rate": rate}, nbytes=options.sizes, algorithm=algorithms, codec=CODECS
        )
        if hosts >= LEAST_HOSTS.get(cell["algorithm"], 1)
    ]
    every = [cell for cell in found if cell["algorithm"] != "backend" or cell["codec"] == CODECS[0]]
    return [{**cell, "segment_nbytes": SEGMENT_NBYTES} for cell in every]


def _steps(options: PredictionOptions) -> list[Cell]:
    steps = {"algorithm": "ring", "segment_nbytes": SEGMENT_NBYTES}
    return [
        {**network, **steps, "codec": codec, "buckets": buckets, "lanes": lanes}
        for hosts, rate, delay in options.networks
        if delay
        for network in cells_of({"hosts": hosts, "rate": rate, "delay": delay}, nbytes=options.sizes)
        for buckets, lanes in BUCKETS_AND_LANES
        for codec in DISTANT_CODECS
    ]


def measure(ranks: Ranks, cells: Sequence[Cell]) -> None:
    """Measure and predict the cells of one network, as one of its ranks."""
    if is_distant(cells[0]):
        from gradwire_lab.experiments.prediction import steps

        steps.measure(ranks, cells, ranks.environment(list(DISTANT_CODECS)))
        return
    environment = ranks.environment(list(CODECS))
    for cell in cells:
        algorithm, codec, count = cell["algorithm"], cell["codec"], cell["nbytes"] // FLOAT_NBYTES
        if algorithm == SHARDED:
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
        for _ in range(3):  # untimed: full copies, and an optimizer's first steps
            method.step(loss)
        seconds = time_s(lambda: method.step(loss))
    if environment is None:
        return seconds, 0.0
    samples = [gradient(count, seed) for seed in range(4)]
    costs = {**environment.codecs, WEIGHTS: measure_weights(samples, LEARNING_RATE, 1)}
    family = Family(replace(environment, codecs=costs))
    workload = Workload((count,), backward_s=backward_s, update_s=update_s)
    return seconds, Predictor(workload, ranks.world, family).predict(plan).step_s


# The tables: points, choices by prediction, and summaries of errors.

TIMES: Columns[Row] = (
    (Column("measured", "ms"), ms_of("measured_s")),
    (Column("fastest", "ms"), ms_of("fastest_s")),
    (Column("slowest", "ms"), ms_of("slowest_s")),
    (Column("predicted", "ms"), ms_of("predicted_s")),
    (Column("error", "%"), lambda row: f"{100 * error_of(row):+.1f}"),
)
POINTS: Columns[Row] = (
    (Column.of_text("algorithm"), text_of("algorithm")),
    (Column.of_text("codec"), text_of("codec")),
    *TIMES,
)
STEPS: Columns[Row] = (
    (Column("buckets"), text_of("buckets")),
    (Column("lanes"), text_of("lanes")),
    (Column.of_text("codec"), text_of("codec")),
    *TIMES,
)
SUMMARY = (
    Column.of_text("network"),
    Column("predictions"),
    Column("median error", "%"),
    Column("90th percentile", "%"),
    Column("largest", "%"),
    Column(f"choices within {100 * GOOD:.0f} % of the best"),
)
CHOICES = (
    Column("codecs"),
    Column.of_text("chosen plan"),
    Column("measured", "ms"),
    Column.of_text("best plan"),
    Column("measured", "ms"),
    Column("loss", "%"),
)


def is_distant(row: Row) -> bool:
    """Return whether a row is a step between distant hosts; older records have no such steps."""
    return "delay" in row


def choose(rows: Sequence[Row]) -> Row:
    """Return the row that the planner chooses: the simplest plan that ties with the fastest prediction."""
    from gradwire.planner.predict import UNCERTAINTY

    fastest_s = min(row["predicted_s"] for row in rows)
    ties = [row for row in rows if row["predicted_s"] * (1 - UNCERTAINTY) <= fastest_s]
    return min(ties, key=_preference)


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return measurements and choices per network and size, and summaries, distant hosts last."""
    near, distant = ([row for row in rows if is_distant(row) == wanted] for wanted in (False, True))
    found: list[str | Table] = []
    if near:
        found += _part(near, POINTS, CODECS, "predictions")
    if distant:
        found += [""] if near else []
        found += _part(distant, STEPS, DISTANT_CODECS, "predictions between distant hosts")
    return found


def summary(rows: Sequence[Row]) -> Table:
    """Return the errors and choices of each network, in the order of ``rows``."""
    networks = defaultdict(list)
    for row in rows:
        networks[row["hosts"], row["rate"], row.get("delay")].append(row)
    found = []
    for group in networks.values():
        sizes, losses = defaultdict(list), list[float]()
        for row in group:
            sizes[row["nbytes"]].append(row)
        for each in sizes.values():
            _choices(each, DISTANT_CODECS if is_distant(group[0]) else CODECS, losses)
        good = sum(loss <= GOOD for loss in losses)
        errors = [f"{100 * each:.1f}" for each in _errors(group)]
        found.append((_network_of(group[0]), str(len(group)), *errors, f"{good} of {len(losses)}"))
    return Table(SUMMARY, found)


def _errors(rows: Sequence[Row]) -> tuple[float, float, float]:
    """Return the median, the 90th percentile, and the largest of the relative errors' magnitudes."""
    errors = sorted(abs(error_of(row)) for row in rows)
    return errors[len(errors) // 2], errors[int(0.9 * len(errors))], errors[-1]


def _part(rows: Sequence[Row], columns: Columns[Row], codecs: Sequence[str], what: str) -> list[str | Table]:
    there = defaultdict(list)
    for row in rows:
        there[row["hosts"], row["rate"], row.get("delay"), row["nbytes"]].append(row)
    found: list[str | Table] = []
    losses: list[float] = []
    for group in there.values():
        found += [_title(group[0]), "", table_of(columns, group), ""]
        found += [Table(CHOICES, _choices(group, codecs, losses)), ""]
    median, ninetieth, largest = (f"{100 * each:.1f} %" for each in _errors(rows))
    good = sum(loss <= GOOD for loss in losses)
    return [
        *found,
        f"Error of {len(rows)} {what}: median {median}, 90th percentile {ninetieth}, largest {largest}.",
        "",
        f"{good} of {len(losses)} choices by prediction are within {100 * GOOD:.0f} % of the best plan.",
    ]


def _choices(group: Sequence[Row], codecs: Sequence[str], losses: list[float]) -> list[tuple[str, ...]]:
    """Return the planner's choices in a group of rows, and append the choices' extra times to ``losses``."""
    found, comparable = [], [row for row in group if row["algorithm"] != SHARDED]
    for number in range(1, len(codecs) + 1):
        allowed = [row for row in comparable if row["codec"] in codecs[:number]]
        if not allowed:
            continue
        chosen, best = choose(allowed), min(allowed, key=lambda row: row["measured_s"])
        losses.append(chosen["measured_s"] / best["measured_s"] - 1)
        plans = [text for row in (chosen, best) for text in (_plan(row), figure(1e3 * row["measured_s"]))]
        found.append((str(number), *plans, f"{100 * losses[-1]:.1f}"))
    return found


def _preference(row: Row) -> tuple[int, ...]:
    if is_distant(row):
        codec = DISTANT_CODECS.index(row["codec"])
        return codec > 0, row["lanes"], codec, row["buckets"]
    return CODECS.index(row["codec"]), ALGORITHMS.index(row["algorithm"])


def _network_of(row: Row) -> str:
    network = f"{row['hosts']} hosts at {row['rate']}"
    if not is_distant(row):
        return network
    return f"{network}, round trip {format_duration(2 * parse_duration(row['delay']))}"


def _title(row: Row) -> str:
    what = "steps of " if is_distant(row) else ""
    return f"{_network_of(row)}, {what}{exact_size(row['nbytes'])}:"


def _plan(row: Row) -> str:
    if is_distant(row):
        buckets = f"{row['buckets']} buckets" if row["buckets"] > 1 else "1 bucket"
        lanes = f", {row['lanes']} lanes" if row["lanes"] > 1 else ""
        return f"{row['codec']}, {buckets}{lanes}"
    return f"{row['algorithm']} {row['codec']}"


EXPERIMENT = Experiment(
    name="prediction",
    question="how close are predicted times, and what do choices lose?",
    answer=Answer("error", ("algorithm", "codec")),
    options=PredictionOptions,
    cells=cells,
    run=measured_by(__name__),
    table=table,
)
