"""Figure 1: three organisations of the workers: aggregators, rings below an aggregator, or rings alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gradwire_lab.closed_forms.formulas import AlphaBetaGamma, ring_s, star_s
from gradwire_lab.experiments.claim import RATIO, Basis, Claim, Published, at_least, near, only
from gradwire_lab.experiments.experiment import Cell, Row
from gradwire_lab.experiments.hosts.exchanges import SHORT_NBYTES, exchanging, line_of, rate
from gradwire_lab.experiments.papers.exhibit import (
    FLOATING,
    RUN_TIME,
    TWO_CORES,
    chosen,
    exhibit,
    row_of,
)

PLACE = "figure 1"
GROUP = 2
FLAT, TREE, LEAVES, RINGS = "one aggregator", "a: aggregators", "b: rings below", "c: rings"
ORGANISATIONS = {
    FLAT: "star",
    TREE: f"hierarchical:{GROUP},star+star",
    LEAVES: f"hierarchical:{GROUP},ring+star",
    RINGS: f"hierarchical:{GROUP}",
}
"""The figure's organisations and the single aggregator, with the collectives used here."""
WITHIN, FASTER, EVEN = 0.2, 1.1, 0.01
"""The allowed deviation from formulas, the ratio that counts as faster, and the tolerance of "even"."""
BUDGET_S = 20.0
"""The time budget of a cell's exchanges in seconds; at least one exchange runs."""


@dataclass(frozen=True)
class InceptionnFigure1Options:
    """The number of workers, their total rate, bytes of a gradient, and exchanges per cell."""

    workers: int
    total_mbit: int
    nbytes: int
    repeats: int


def cells(options: InceptionnFigure1Options) -> list[Cell]:
    """Return a cell for each organisation."""
    network = {"hosts": options.workers, "rate": rate(options.workers, options.total_mbit)}
    return [
        {"organisation": name, **network, "nbytes": options.nbytes, "algorithm": algorithm}
        for name, algorithm in ORGANISATIONS.items()
    ]


def _busiest(row: Row) -> Mapping[str, float]:
    return {"busiest_over_mean": busiest_over_mean(row["algorithm"], row["hosts"])}


def busiest_over_mean(algorithm: str, workers: int) -> float:
    """Return the bytes that the busiest worker sends in the schedule, relative to the workers' mean."""
    from gradwire import collectives

    collective = collectives.get(algorithm)
    sent = [
        sum(step.send[1] - step.send[0] for step in collective.schedule(rank, workers))
        for rank in range(workers)
    ]
    return max(sent) * workers / sum(sent)


def formula_s(organisation: str, workers: int, nbytes: float, link: AlphaBetaGamma) -> float:
    """Return the seconds of an exchange within groups and then between them: a sum of formulas."""
    groups, chunk = workers // GROUP, nbytes / GROUP
    if organisation == FLAT:
        return star_s(workers, nbytes, link)
    if organisation == TREE:
        return star_s(GROUP, nbytes, link) + star_s(groups, nbytes, link)
    above = star_s if organisation == LEAVES else ring_s
    return ring_s(GROUP, nbytes, link) + above(groups, chunk, link)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the organisations with each other and with the formulas."""

    def typical_s(name: str) -> float:
        return float(median(row_of(rows, organisation=name)["seconds"]))

    def over_formula(name: str) -> float:
        row = row_of(rows, organisation=name)
        return typical_s(name) / formula_s(name, row["hosts"], row["nbytes"], line_of(row))

    def over(one: str, other: str) -> Mapping[str, float | None]:
        return only(typical_s(one) / typical_s(other))

    def busiest(name: str) -> Mapping[str, float | None]:
        return only(row_of(rows, organisation=name)["busiest_over_mean"])

    published = Published(PLACE)
    return [
        Claim(
            "time of one aggregator over a tree of aggregators (a): disperses the load",
            over(FLAT, TREE),
            at_least(FASTER),
            unit=RATIO,
            published=Published("section II.B"),
        ),
        Claim(
            "time of aggregators (a) over rings below an aggregator (b)",
            over(TREE, LEAVES),
            at_least(FASTER),
            unit=RATIO,
            published=published,
        ),
        Claim(
            "time of rings below an aggregator (b) over rings alone (c)",
            over(LEAVES, RINGS),
            at_least(FASTER),
            unit=RATIO,
            published=published,
        ),
        Claim(
            "measured times over the formulas' for the hosts' link",
            {name: over_formula(name) for name in ORGANISATIONS},
            near(1.0, WITHIN),
            of_each=True,
            unit=RATIO,
            published=published,
        ),
        Claim(
            "bytes of the busiest node over the mean, with aggregators (a): a bottleneck",
            busiest(TREE),
            at_least(2.0),
            unit=RATIO,
            published=Published("section II.B"),
            basis=Basis.ARITHMETIC,
        ),
        Claim(
            "bytes of the busiest node over the mean, with rings (c): evenly",
            busiest(RINGS),
            near(1.0, EVEN),
            unit=RATIO,
            published=Published("section IV"),
            basis=Basis.ARITHMETIC,
        ),
    ]


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "what do rings save in place of aggregators, at the leaves and on all levels?",
    cells=cells,
    run=exchanging(BUDGET_S, SHORT_NBYTES, _busiest),
    claims=claims,
    quick=InceptionnFigure1Options(8, 1600, 1_000_000, 3),
    full=InceptionnFigure1Options(8, 1600, 4_000_000, 9),
    scaling="eight workers in groups of two are hosts of a testbed that exchange over TCP, at 200 Mbit/s "
    "each, because all share two cores. The first worker of a group is its aggregator, and gradients are "
    "sent in both directions. Gradients have 1 MB (4 MB with --full). The paper draws the figure without "
    "numbers, so the rules express its words. The rules also compare the times with formulas of "
    "aggregators and rings, with the rate and latency measured between two of the hosts.",
    origins={
        "GROUP": chosen("the smallest groups"),
        "WITHIN": chosen("the formula omits additions and CPU time"),
        "FASTER": chosen("clearly more than the scatter of shared cores"),
        "EVEN": FLOATING,
        "BUDGET_S nbytes repeats": RUN_TIME,
        "workers": chosen("four groups of two"),
        "total_mbit": TWO_CORES,
    },
    seconds=(20, 90),
    version=2,
)
