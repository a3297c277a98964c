"""Figure 2b: the scaling of three all-reduce schemes with the number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from gradwire_lab.experiments.claim import RATIO, Claim, Published, at_least, at_most, near
from gradwire_lab.experiments.experiment import Cell, Row, cells_of
from gradwire_lab.experiments.hosts.exchanges import exchanging
from gradwire_lab.experiments.papers.exhibit import RUN_TIME, chosen, exhibit, paper, row_of

PLACE = "figure 2b"
SCHEMES = {"ring": "ring", "Rabenseifner": "butterfly", "binomial": "tree"}
RATE = "40mbit"
SIMILAR, WELL = 0.2, 1.35
"""The allowed difference between schemes, and the largest growth of a time if the nodes double."""
BUDGET_S = 30.0


@dataclass(frozen=True)
class SmartNicFigure2bOptions:
    """The options: numbers of nodes, which are powers of two, bytes of a gradient, and exchanges per cell."""

    nodes: tuple[int, ...]
    nbytes: int
    repeats: int


def cells(options: SmartNicFigure2bOptions) -> list[Cell]:
    """Return a cell for each scheme and number of nodes."""
    found = cells_of({"rate": RATE, "nbytes": options.nbytes}, nodes=options.nodes, scheme=SCHEMES)
    return [{**cell, "hosts": cell["nodes"], "algorithm": SCHEMES[cell["scheme"]]} for cell in found]


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the schemes with each other, and times on the most nodes with times on half as many nodes."""
    nodes = sorted({row["nodes"] for row in rows})
    claim = partial(Claim, of_each=True, unit=RATIO, published=Published(PLACE))

    def exchange_s(scheme: str, number: int) -> float:
        return float(median(row_of(rows, scheme=scheme, nodes=number)["seconds"]))

    def over_ring(scheme: str) -> dict[str, float | None]:
        return {f"{each} nodes": exchange_s(scheme, each) / exchange_s("ring", each) for each in nodes}

    def growth(scheme: str) -> float:
        return exchange_s(scheme, nodes[-1]) / exchange_s(scheme, nodes[-2])

    similar, worse = over_ring("Rabenseifner"), over_ring("binomial")
    scaling = {scheme: growth(scheme) for scheme in ("ring", "Rabenseifner")}
    text = f"{nodes[-1]} nodes over {nodes[-2]}, ring and Rabenseifner: scale well"
    return [
        claim("Rabenseifner's time over the ring's: similar", similar, near(1.0, SIMILAR)),
        claim("a binomial tree's time over the ring's: consistently worse", worse, at_least(1 + SIMILAR)),
        claim(text, scaling, at_most(WELL)),
    ]


EXHIBIT = exhibit(
    "smart-nic",
    PLACE,
    "how do a ring, Rabenseifner's scheme, and a binomial tree scale?",
    cells=cells,
    run=exchanging(BUDGET_S),
    claims=claims,
    quick=SmartNicFigure2bOptions((4, 8), 300_000, 3),
    full=SmartNicFigure2bOptions((2, 4, 8, 16), 2_000_000, 9),
    scaling="hosts of a testbed at 40 Mbit/s, a rate with which two cores keep up, exchange gradients of "
    "0.3 MB (2 MB with --full) over TCP. The paper runs training steps over MPI on up to 32 nodes. The "
    "paper plots the figure without numbers, so the rules express its words.",
    origins={
        "SIMILAR": chosen("the scatter of shared cores"),
        "WELL": chosen("the formulas' growth and what shared cores add"),
        "BUDGET_S nbytes repeats": RUN_TIME,
        "nodes": paper("figure 2b"),
    },
    seconds=(22, 320),
    version=2,
)
