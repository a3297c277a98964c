"""Figure 15: the exchange time by number of workers, with an aggregator and with a ring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from gradwire_lab.closed_forms.formulas import ring_s, worker_aggregator_s
from gradwire_lab.experiments.claim import RATIO, Claim, Published, near, only
from gradwire_lab.experiments.experiment import Cell, Row
from gradwire_lab.experiments.hosts.exchanges import SHORT_NBYTES, ExchangeOptions, exchanging, line_of, rate
from gradwire_lab.experiments.papers.exhibit import RUN_TIME, TWO_CORES, chosen, exhibit, paper

PLACE, FORMULA = "figure 15", "section VIII-D"
WA, INC = "WA", "INC"
FORMULAS = {WA: worker_aggregator_s, INC: ring_s}
FEW, MANY = 4, 8
GROWTHS = {WA: (8 + 3) / (4 + 2), INC: (7 / 8) / (3 / 4)}
"""The published growth of p + lg p and of 2 (p - 1)/p messages, from 4 to 8 workers."""
WITHIN, STRAIGHT = 0.2, 0.1
"""The allowed deviations of times from formulas, and of times from a straight line."""
BUDGET_S = 15.0
"""The time budget of a cell's exchanges in seconds; at least one exchange runs."""


def cells(options: ExchangeOptions) -> list[Cell]:
    """Return a cell for each organisation and number of workers; WA's aggregator is one host more."""
    hosts = max(options.workers) + 1
    network = {"hosts": hosts, "rate": rate(hosts, options.total_mbit), "nbytes": options.nbytes}
    collectives: Mapping[str, Mapping[str, str]] = {
        WA: {"algorithm": "star", "down": "tree"},
        INC: {"algorithm": "ring"},
    }
    return [
        {
            "organisation": name,
            "workers": workers,
            "ranks": workers + (name == WA),
            **network,
            **collectives[name],
        }
        for name in (WA, INC)
        for workers in options.workers
    ]


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the growth from 4 to 8 workers, and the times, with the paper's formulas."""
    found = {(row["organisation"], row["workers"]): row for row in rows}
    measured = {key: float(median(row["seconds"])) for key, row in found.items()}
    own = [(workers, seconds) for (name, workers), seconds in measured.items() if name == WA]
    few_s, many_s = measured[WA, FEW], measured[WA, MANY]
    straight_s = {workers: few_s + (many_s - few_s) * (workers - FEW) / (MANY - FEW) for workers, _ in own}
    return [
        _grows(measured, WA, "8 workers over 4 with an aggregator: grows"),
        Claim(
            "times with an aggregator over the times on a straight line",
            {str(workers): seconds / straight_s[workers] for workers, seconds in own},
            near(1.0, STRAIGHT),
            of_each=True,
            unit="",
            published=Published(PLACE),
        ),
        _over_formula(found, measured, WA, "times with an aggregator over the formula's"),
        _grows(measured, INC, "8 workers over 4 with a ring: stays about constant"),
        _over_formula(found, measured, INC, "times with a ring over the formula's"),
    ]


def _grows(measured: Mapping[tuple[str, int], float], name: str, text: str) -> Claim:
    return Claim(
        text,
        only(measured[name, MANY] / measured[name, FEW]),
        near(GROWTHS[name], WITHIN),
        unit=RATIO,
        published=Published(FORMULA, GROWTHS[name]),
    )


def _over_formula(
    found: Mapping[tuple[str, int], Row], measured: Mapping[tuple[str, int], float], name: str, text: str
) -> Claim:
    """Return the claim that times equal the paper's formula for the link measured on the hosts."""
    return Claim(
        text,
        {
            str(workers): measured[of, workers] / FORMULAS[name](workers, row["nbytes"], line_of(row))
            for (of, workers), row in found.items()
            if of == name
        },
        near(1.0, WITHIN),
        of_each=True,
        unit="",
        published=Published(FORMULA, 1.0),
    )


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "how does the exchange time grow with the workers?",
    cells=cells,
    run=exchanging(BUDGET_S, SHORT_NBYTES),
    claims=claims,
    quick=ExchangeOptions((4, 6, 8), 1800, 1_000_000, 2),
    full=ExchangeOptions((4, 5, 6, 7, 8), 1800, 4_000_000, 9),
    scaling="workers and the aggregator are the first hosts of a testbed of nine, at 200 Mbit/s each, "
    "because all share two cores. These hosts exchange gradients of 1 MB (4 MB with --full) over TCP. The "
    "paper plots the figure without numbers, so the rules express its words: one time grows almost "
    "linearly, and the other stays almost constant. The rules also use the paper's formulas, with the rate "
    "and latency measured between two of the hosts. The aggregator is a separate rank, so its tree may "
    "have one level more than the formula's. gradwire experiment scaling exchanges AlexNet's 233 MB.",
    origins={
        "FEW MANY workers": paper("figure 15"),
        "GROWTHS": paper("section VIII-D, where the latency is negligible; additions are left out, too"),
        "WITHIN": chosen("the formula omits additions and CPU time"),
        "STRAIGHT": chosen("almost linear, as the paper says, is not exactly so"),
        "BUDGET_S nbytes repeats": RUN_TIME,
        "total_mbit": TWO_CORES,
    },
    seconds=(20, 200),
    version=2,
)
