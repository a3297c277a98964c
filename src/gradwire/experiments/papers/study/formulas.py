"""Equations 1 to 4: the formulas' seconds, and those of exchanges over links whose rate is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gradwire.experiments.claim import Claim, Published, near, only
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit
from gradwire.experiments.papers.origins import RUN_TIME, TWO_CORES, chosen, origins
from gradwire.timing.closed_form.formulas import (
    AlphaBetaGamma,
    butterfly_s,
    parameter_server_s,
    ring_s,
    tree_s,
)

PLACE = "equations 1 to 4"
FORMULAS = {
    "parameter server": parameter_server_s,
    "tree": tree_s,
    "ring": ring_s,
    "butterfly": butterfly_s,
}
NBYTES_PER_S, LATENCY_S = 10e6, 2e-3
WITHIN = 0.15
"""The share by which the median of a cell may differ from its formula."""


@dataclass(frozen=True)
class Options:
    """Numbers of servers, bytes of a gradient, and exchanges of each cell."""

    servers: tuple[int, ...]
    nbytes: int
    repeats: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each algorithm and number of servers."""
    return [
        {"algorithm": algorithm, "servers": servers, "nbytes": options.nbytes}
        for algorithm in FORMULAS
        for servers in options.servers
    ]


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Exchange; the parameter server is one host more than there are workers."""
    from gradwire.experiments.papers.threads import exchange_s

    is_server = cell["algorithm"] == "parameter server"
    algorithm, world = "star" if is_server else cell["algorithm"], cell["servers"] + is_server
    link = AlphaBetaGamma(LATENCY_S, 1 / NBYTES_PER_S)
    return {
        "seconds": exchange_s(
            world, algorithm, "identity", cell["nbytes"], NBYTES_PER_S, LATENCY_S, options.repeats
        ),
        "formula_s": FORMULAS[cell["algorithm"]](cell["servers"], cell["nbytes"], link),
    }


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare each algorithm's measured seconds with its equation's."""
    found = []
    for number, algorithm in enumerate(FORMULAS, start=1):
        ratios = {
            str(row["servers"]): median(row["seconds"]) / row["formula_s"]
            for row in rows
            if row["algorithm"] == algorithm
        }
        text = f"{algorithm}: measured time over the formula's"
        published = Published(f"equation {number}", 1.0)
        found.append(
            Claim(text, ratios, near(1.0, WITHIN), of_each=True, unit="", published=published)
            if ratios
            else Claim(text, only(None), near(1.0, WITHIN), unit="", published=published)
        )
    return found


ORIGINS = origins(
    NBYTES_PER_S=TWO_CORES,
    LATENCY_S=TWO_CORES,
    WITHIN=chosen("a formula has no additions and no processor time"),
    servers=RUN_TIME,
    nbytes=RUN_TIME,
    repeats=RUN_TIME,
)
EXHIBIT = exhibit(
    "study",
    PLACE,
    "do exchanges take as long as their formulas say?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options((2, 4, 8), 1_000_000, 3),
    full=Options((2, 4, 8, 16), 4_000_000, 9),
    scaling="ranks are threads of one process, whose links are paced to 80 Mbit/s and 2 ms; gradients of 1 "
    "MB (4 MB with --full). A formula has no additions and no processor time.",
    origins=ORIGINS,
    seconds=(22, 200),
)
