"""Figure 15: the exchange time by number of workers, with an aggregator and with a ring."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median

from gradwire_lab.closed_forms.formulas import ring_s, worker_aggregator_s
from gradwire_lab.experiments.claim import RATIO, Claim, Published, near, only
from gradwire_lab.experiments.experiment import Cell, Row, grouped
from gradwire_lab.experiments.hosts.exchanges import SHORT_NBYTES, ExchangeOptions, exchanging, line_of, rate
from gradwire_lab.experiments.papers.exhibit import RUN_TIME, TWO_CORES, chosen, exhibit, paper

PLACE, FORMULA = "figure 15", "section VIII-D"
WA, INC = "WA", "INC"
FORMULAS = {WA: worker_aggregator_s, INC: ring_s}
FEW_WORKERS, MANY_WORKERS = 4, 8
GROWTHS = {WA: (8 + 3) / (4 + 2), INC: (7 / 8) / (3 / 4)}
"""The published growth of p + lg p and of 2 (p - 1)/p messages, from 4 to 8 workers."""
WITHIN, STRAIGHT = 0.2, 0.1
"""The allowed deviations of times from formulas, and of times from a straight line."""
BUDGET_S = 15.0


def cells(options: ExchangeOptions) -> list[Cell]:
    """Return a cell for each organisation and number of workers; WA's aggregator is one host more."""
    hosts = max(options.workers) + 1
    network = {"hosts": hosts, "rate": rate(hosts, options.total_mbit), "nbytes": options.nbytes}
    collectives = {WA: {"algorithm": "star", "down": "tree"}, INC: {"algorithm": "ring"}}
    return [
        {"organisation": name, "workers": each, "ranks": each + (name == WA), **network, **collective}
        for name, collective in collectives.items()
        for each in options.workers
    ]


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the growth from 4 to 8 workers, and the times, with the paper's formulas."""
    found = {
        name: {row["workers"]: row for row in own} for name, own in grouped(rows, "organisation").items()
    }
    measured = {
        name: {workers: float(median(row["seconds"])) for workers, row in own.items()}
        for name, own in found.items()
    }
    few_s, many_s = measured[WA][FEW_WORKERS], measured[WA][MANY_WORKERS]
    each_s = (many_s - few_s) / (MANY_WORKERS - FEW_WORKERS)
    straight = {str(each): s / (few_s + each_s * (each - FEW_WORKERS)) for each, s in measured[WA].items()}

    def grows(name: str, text: str) -> Claim:
        growth, published = measured[name][MANY_WORKERS] / measured[name][FEW_WORKERS], GROWTHS[name]
        place = Published(FORMULA, published)
        return Claim(text, only(growth), near(published, WITHIN), unit=RATIO, published=place)

    def over_formula(name: str, text: str) -> Claim:
        over = {
            str(workers): measured[name][workers] / FORMULAS[name](workers, row["nbytes"], line_of(row))
            for workers, row in found[name].items()
        }
        return of_each(text, over, near(1.0, WITHIN), published=Published(FORMULA, 1.0))

    of_each = partial(Claim, of_each=True, unit="")
    text = "times with an aggregator over the times on a straight line"
    return [
        grows(WA, "8 workers over 4 with an aggregator: grows"),
        of_each(text, straight, near(1.0, STRAIGHT), published=Published(PLACE)),
        over_formula(WA, "times with an aggregator over the formula's"),
        grows(INC, "8 workers over 4 with a ring: stays about constant"),
        over_formula(INC, "times with a ring over the formula's"),
    ]


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
        "FEW_WORKERS MANY_WORKERS workers": paper("figure 15"),
        "GROWTHS": paper("section VIII-D, where the latency is negligible; additions are left out, too"),
        "WITHIN": chosen("the formula omits additions and CPU time"),
        "STRAIGHT": chosen("almost linear, as the paper says, is not exactly so"),
        "BUDGET_S nbytes repeats": RUN_TIME,
        "total_mbit": TWO_CORES,
    },
    seconds=(20, 200),
    version=2,
)
