"""Figure 1: three organisations of the workers: aggregators, rings below an aggregator, or rings alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from gradwire_lab.closed_forms.formulas import AlphaBetaGamma, ring_s, star_s
from gradwire_lab.experiments.claim import RATIO, Basis, Claim, Published, at_least, near, only
from gradwire_lab.experiments.experiment import Cell, Row
from gradwire_lab.experiments.hosts.exchanges import SHORT_NBYTES, exchanging, line_of, rate
from gradwire_lab.experiments.papers.exhibit import FLOATING, RUN_TIME, TWO_CORES, chosen, exhibit

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
    found = {row["organisation"]: row for row in rows}
    typical_s = {name: float(median(row["seconds"])) for name, row in found.items()}
    busiest = {name: only(row["busiest_over_mean"]) for name, row in found.items()}
    over_formula = {
        name: typical_s[name] / formula_s(name, row["hosts"], row["nbytes"], line_of(row))
        for name, row in found.items()
    }
    times = [
        ("one aggregator over a tree of aggregators (a): disperses the load", FLAT, TREE, "section II.B"),
        ("aggregators (a) over rings below an aggregator (b)", TREE, LEAVES, PLACE),
        ("rings below an aggregator (b) over rings alone (c)", LEAVES, RINGS, PLACE),
    ]
    claim = partial(Claim, unit=RATIO)
    sent = partial(claim, basis=Basis.ARITHMETIC)
    text = "bytes of the busiest node over the mean, with"
    aggregated, even = Published("section II.B"), Published("section IV")
    return [
        *(
            claim(
                f"time of {what}",
                only(typical_s[one] / typical_s[other]),
                at_least(FASTER),
                published=Published(place),
            )
            for what, one, other, place in times
        ),
        claim(
            "measured times over the formulas' for the hosts' link",
            over_formula,
            near(1.0, WITHIN),
            of_each=True,
            published=Published(PLACE),
        ),
        sent(f"{text} aggregators (a): a bottleneck", busiest[TREE], at_least(2.0), published=aggregated),
        sent(f"{text} rings (c): evenly", busiest[RINGS], near(1.0, EVEN), published=even),
    ]


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "what do rings save in place of aggregators, at the leaves and on all levels?",
    cells=cells,
    run=exchanging(
        BUDGET_S,
        SHORT_NBYTES,
        lambda row: {"busiest_over_mean": busiest_over_mean(row["algorithm"], row["hosts"])},
    ),
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
