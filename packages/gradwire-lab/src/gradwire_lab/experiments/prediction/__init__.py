"""The errors of predicted times, and the extra time of plans chosen by prediction.

Without a delay, a plan is one exchange; between distant hosts, it is a step with buckets in lanes. For every
network and size, the plan chosen by prediction alone is compared with the best measured plan.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradwire.cli.lists import between_commas, listed
from gradwire.codecs import parse
from gradwire.deferred import torch
from gradwire.errors import SpecError
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.timing.replay import replay
from gradwire.units import parse_duration, parse_whole
from gradwire_lab.experiments.answer import Answer
from gradwire_lab.experiments.experiment import (
    Cell,
    CheckedOptions,
    Experiment,
    cells_of,
    option,
    sizes_between_commas,
)
from gradwire_lab.experiments.hosts import check_networks, measured_by
from gradwire_lab.experiments.prediction.tables import (
    ALGORITHMS,
    CODECS,
    DISTANT_CODECS,
    SHARDED,
    is_distant,
    table,
)

if TYPE_CHECKING:  # these modules import torch, which only the hosts need
    from gradwire.timing.environment import Environment
    from gradwire_lab.experiments.hosts.ranks import Ranks

Network = tuple[int, str, str]
"""The number of hosts, the rate of their links, and the one-way delay of every frame (empty: no delay)."""
LEARNING_RATE = 1e-3
"""The learning rate of the weights in a sharded exchange."""
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


EXPERIMENT = Experiment(
    name="prediction",
    question="how close are predicted times, and what do choices lose?",
    answer=Answer("error", ("algorithm", "codec")),
    options=PredictionOptions,
    cells=cells,
    run=measured_by(__name__),
    table=table,
)
