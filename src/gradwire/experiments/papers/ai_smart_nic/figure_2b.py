"""Figure 2b: how three schemes of all-reduce scale with the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.experiments.claim import RATIO, Claim, Published, at_least, at_most, near
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit, row_of
from gradwire.experiments.papers.origins import RUN_TIME, TWO_CORES, chosen, origins, paper

PLACE = "figure 2b"
SCHEMES = {"ring": "ring", "Rabenseifner": "butterfly", "binomial": "tree"}
"""As the paper names them, and the collective here."""
NBYTES_PER_S, LATENCY_S = 5e6, 1e-4
SIMILAR, WELL = 0.2, 1.35
"""By what two schemes may differ, and how much longer an exchange takes on twice the nodes if it scales."""


@dataclass(frozen=True)
class Options:
    """Numbers of nodes, powers of two; bytes of a gradient; and exchanges of a cell."""

    nodes: tuple[int, ...]
    nbytes: int
    repeats: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each scheme and number of nodes."""
    return [
        {"scheme": scheme, "nodes": nodes, "nbytes": options.nbytes}
        for nodes in options.nodes
        for scheme in SCHEMES
    ]


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Time exchanges between threads over paced links."""
    from gradwire.experiments.papers.threads import exchange_s

    return {
        "seconds": exchange_s(
            cell["nodes"],
            SCHEMES[cell["scheme"]],
            "identity",
            cell["nbytes"],
            NBYTES_PER_S,
            LATENCY_S,
            options.repeats,
        )
    }


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the schemes with each other, and their times on the most nodes with those on half of them."""
    nodes = [*dict.fromkeys(row["nodes"] for row in rows)]

    def best_s(scheme: str, number: int) -> float:
        return float(min(row_of(rows, scheme=scheme, nodes=number)["seconds"]))

    def over_ring(scheme: str) -> dict[str, float | None]:
        return {f"{number} nodes": best_s(scheme, number) / best_s("ring", number) for number in nodes}

    growth = {
        scheme: best_s(scheme, nodes[-1]) / best_s(scheme, nodes[-2]) for scheme in ("ring", "Rabenseifner")
    }
    return [
        Claim(
            "Rabenseifner's time over the ring's: similar",
            over_ring("Rabenseifner"),
            near(1.0, SIMILAR),
            of_each=True,
            unit=RATIO,
            published=Published(PLACE),
        ),
        Claim(
            "a binomial tree's time over the ring's: consistently worse",
            over_ring("binomial"),
            at_least(1 + SIMILAR),
            of_each=True,
            unit=RATIO,
            published=Published(PLACE),
        ),
        Claim(
            f"{nodes[-1]} nodes over {nodes[-2]}, ring and Rabenseifner: scale well",
            growth,
            at_most(WELL),
            of_each=True,
            unit=RATIO,
            published=Published(PLACE),
        ),
    ]


ORIGINS = origins(
    NBYTES_PER_S=TWO_CORES,
    LATENCY_S=TWO_CORES,
    SIMILAR=chosen("the scatter of shared cores"),
    WELL=chosen("the formulas' growth and what shared cores add"),
    nodes=paper("figure 2b"),
    nbytes=RUN_TIME,
    repeats=RUN_TIME,
)
EXHIBIT = exhibit(
    "smart-nic",
    PLACE,
    "how do a ring, Rabenseifner's scheme, and a binomial tree scale?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options((4, 8), 600_000, 2),
    full=Options((2, 4, 8, 16), 2_000_000, 9),
    scaling="ranks are threads of one process over links paced to 40 Mbit/s, with gradients of 0.6 "
    "MB (2 MB with --full), instead of MPI on up to 32 nodes. The paper plots the figure "
    "without numbers: the rules are its words.",
    origins=ORIGINS,
    seconds=(7, 200),
)
