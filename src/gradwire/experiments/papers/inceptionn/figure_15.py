"""Figure 15: the exchange time with more workers, with an aggregator and with a ring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gradwire.experiments.claim import RATIO, Basis, Claim, Published, at_least, at_most, near, only
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit, row_of
from gradwire.experiments.papers.origins import RUN_TIME, TWO_CORES, chosen, origins, paper
from gradwire.timing.closed_form.formulas import AlphaBetaGamma, ring_s, worker_aggregator_s

PLACE = "figure 15"
WA, INC = "WA", "INC"
FEW, MANY = 4, 8
NBYTES_PER_S, LATENCY_S = 5e6, 2e-4
LINEAR, CONSTANT = 1.5, 1.35
"""How much longer an exchange takes with 8 workers than with 4: at least, and at most."""
ALEXNET_NBYTES, TEN_GBIT = 233e6, AlphaBetaGamma(50e-6, 8e-10, 2.5e-10)


@dataclass(frozen=True)
class Options:
    """Numbers of workers, bytes of a gradient, and exchanges of a cell."""

    workers: tuple[int, ...]
    nbytes: int
    repeats: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each organisation and number of workers."""
    return [
        {"organisation": name, "workers": workers, "nbytes": options.nbytes}
        for name in (WA, INC)
        for workers in options.workers
    ]


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Exchange between threads over paced links, and compute the paper's formula for AlexNet."""
    from gradwire.experiments.papers.threads import exchange_s

    workers, is_wa = cell["workers"], cell["organisation"] == WA
    algorithm, world = ("star", workers + 1) if is_wa else ("ring", workers)
    formula = worker_aggregator_s if is_wa else ring_s
    return {
        "seconds": exchange_s(
            world, algorithm, "identity", cell["nbytes"], NBYTES_PER_S, LATENCY_S, options.repeats
        ),
        "formula_s": formula(workers, ALEXNET_NBYTES, TEN_GBIT),
    }


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Judge how the time grows from 4 to 8 workers, measured and by the formulas."""

    def growth(name: str, of: str) -> float:
        times = [row_of(rows, organisation=name, workers=workers)[of] for workers in (FEW, MANY)]
        few, many = (median(each) if isinstance(each, list) else each for each in times)
        return float(many / few)

    times = [(row["workers"], median(row["seconds"])) for row in rows if row["organisation"] == WA]
    between = [
        seconds / (times[0][1] + (times[-1][1] - times[0][1]) * (workers - FEW) / (MANY - FEW))
        for workers, seconds in times
    ]
    return [
        Claim(
            "8 workers over 4 with an aggregator: grows",
            only(growth(WA, "seconds")),
            at_least(LINEAR),
            unit=RATIO,
            published=Published(PLACE),
        ),
        Claim(
            "times with an aggregator over those on a straight line",
            {str(workers): ratio for (workers, _), ratio in zip(times, between, strict=True)},
            near(1.0, 0.1),
            of_each=True,
            unit="",
            published=Published(PLACE),
        ),
        Claim(
            "8 workers over 4 with a ring: stays about constant",
            only(growth(INC, "seconds")),
            at_most(CONSTANT),
            unit=RATIO,
            published=Published(PLACE),
        ),
        Claim(
            "the same for AlexNet at 10 Gbit/s, with an aggregator",
            only(growth(WA, "formula_s")),
            at_least(LINEAR),
            unit=RATIO,
            published=Published(PLACE),
            basis=Basis.MODELLED,
        ),
        Claim(
            "the same for AlexNet at 10 Gbit/s, with a ring",
            only(growth(INC, "formula_s")),
            at_most(CONSTANT),
            unit=RATIO,
            published=Published(PLACE),
            basis=Basis.MODELLED,
        ),
    ]


ORIGINS = origins(
    FEW=paper("figure 15"),
    MANY=paper("figure 15"),
    NBYTES_PER_S=TWO_CORES,
    LATENCY_S=TWO_CORES,
    LINEAR=chosen("between constant and the 2 of a line through zero"),
    CONSTANT=chosen("the formula's 7/6 and what shared cores add"),
    ALEXNET_NBYTES=paper("table I"),
    workers=paper("figure 15"),
    nbytes=RUN_TIME,
    repeats=RUN_TIME,
)
EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "how does the exchange time grow with the workers?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options((4, 6, 8), 1_000_000, 2),
    full=Options((4, 5, 6, 7, 8), 2_000_000, 9),
    scaling="ranks are threads of one process; links are paced to 40 Mbit/s, and gradients have 1 MB "
    "(2 MB with --full). The paper plots the figure without numbers: the rules are its "
    "words, that one grows almost linearly and the other stays almost constant. gradwire "
    "experiment scaling measures it on a testbed.",
    origins=ORIGINS,
    seconds=(25, 300),
)
