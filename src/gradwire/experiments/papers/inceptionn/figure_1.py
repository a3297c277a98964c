"""Figure 1: three organisations of the workers: aggregators, rings below an aggregator, and rings alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.experiments.claim import RATIO, Claim, Published, at_least, near, only
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit, row_of
from gradwire.experiments.papers.origins import FLOATING, RUN_TIME, TWO_CORES, chosen, origins
from gradwire.timing.closed_form.formulas import AlphaBetaGamma, ring_s, star_s

PLACE = "figure 1"
GROUP = 2
FLAT, TREE, LEAVES, RINGS = "one aggregator", "a: aggregators", "b: rings below", "c: rings"
ORGANISATIONS = {
    FLAT: "star",
    TREE: f"hierarchical:{GROUP},star+star",
    LEAVES: f"hierarchical:{GROUP},ring+star",
    RINGS: f"hierarchical:{GROUP}",
}
"""As the figure has them, with what they are compared with, and the collective here."""
NBYTES_PER_S, LATENCY_S = 5e6, 2e-4
LINK = AlphaBetaGamma(LATENCY_S, 1 / NBYTES_PER_S)
WITHIN, FASTER, EVEN = 0.2, 1.1, 0.01
"""By what times may differ from formulas, by what one must be shorter to count, and what counts as even."""


@dataclass(frozen=True)
class Options:
    """The number of workers, bytes of a gradient, and exchanges of a cell."""

    workers: int
    nbytes: int
    repeats: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each organisation."""
    return [
        {"organisation": name, "workers": options.workers, "nbytes": options.nbytes} for name in ORGANISATIONS
    ]


def formula_s(organisation: str, workers: int, nbytes: float) -> float:
    """Return the seconds of an exchange: those of a group, and of what goes on to the groups' level.

    Source: the formulas of an aggregator and of a ring, one after the other.
    """
    groups, chunk = workers // GROUP, nbytes / GROUP
    if organisation == FLAT:
        return star_s(workers, nbytes, LINK)
    if organisation == TREE:
        return star_s(GROUP, nbytes, LINK) + star_s(groups, nbytes, LINK)
    above = star_s if organisation == LEAVES else ring_s
    return ring_s(GROUP, nbytes, LINK) + above(groups, chunk, LINK)


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Exchange between threads over paced links, and count the bytes of every worker."""
    from gradwire import collectives
    from gradwire.experiments.papers.threads import exchange_s

    spec, workers = ORGANISATIONS[cell["organisation"]], cell["workers"]
    collective = collectives.get(spec)
    sent = [
        sum(step.send[1] - step.send[0] for step in collective.schedule(rank, workers))
        for rank in range(workers)
    ]
    repeats = (
        1 if cell["organisation"] == FLAT else options.repeats
    )  # it takes as long as all others together
    return {
        "seconds": exchange_s(workers, spec, "identity", cell["nbytes"], NBYTES_PER_S, LATENCY_S, repeats),
        "formula_s": formula_s(cell["organisation"], workers, cell["nbytes"]),
        "busiest_over_mean": max(sent) * workers / sum(sent),
    }


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the organisations with each other, and with the formulas."""

    def best_s(name: str) -> float:
        return float(min(row_of(rows, organisation=name)["seconds"]))

    def over(other: str, own: str) -> Mapping[str, float | None]:
        return only(best_s(other) / best_s(own))

    def busiest(name: str) -> Mapping[str, float | None]:
        return only(row_of(rows, organisation=name)["busiest_over_mean"])

    published = Published(PLACE)
    return [
        Claim(
            "one aggregator's time over that of a tree of them (a): disperses the load",
            over(FLAT, TREE),
            at_least(FASTER),
            unit=RATIO,
            published=Published("section II.B"),
        ),
        Claim(
            "aggregators' time (a) over that of rings below them (b)",
            over(TREE, LEAVES),
            at_least(FASTER),
            unit=RATIO,
            published=published,
        ),
        Claim(
            "time of rings below an aggregator (b) over that of rings alone (c)",
            over(LEAVES, RINGS),
            at_least(FASTER),
            unit=RATIO,
            published=published,
        ),
        Claim(
            "measured times over the formulas'",
            {name: best_s(name) / row_of(rows, organisation=name)["formula_s"] for name in ORGANISATIONS},
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
        ),
        Claim(
            "bytes of the busiest node over the mean, with rings (c): evenly",
            busiest(RINGS),
            near(1.0, EVEN),
            unit=RATIO,
            published=Published("section IV"),
        ),
    ]


ORIGINS = origins(
    GROUP=chosen("the smallest groups"),
    NBYTES_PER_S=TWO_CORES,
    LATENCY_S=TWO_CORES,
    WITHIN=chosen("a formula has no additions and no processor time"),
    FASTER=chosen("what counts as faster beside the scatter of shared cores"),
    EVEN=FLOATING,
    workers=chosen("four groups of two"),
    nbytes=RUN_TIME,
    repeats=RUN_TIME,
)
EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "what do rings in the place of aggregators save, at the leaves and on all levels?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options(8, 1_000_000, 3),
    full=Options(8, 4_000_000, 9),
    scaling="eight workers in groups of two, as threads of one process over links paced to 40 "
    "Mbit/s; an aggregator is the first worker of its group, and gradients travel both ways. "
    "Gradients have 1 MB (4 MB with --full). The paper draws the figure without numbers: the "
    "rules are its words, beside formulas of aggregators and rings.",
    origins=ORIGINS,
    seconds=(18, 300),
)
