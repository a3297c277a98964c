"""Table 1: each algorithm's sequential messages, and sequential bytes in multiples of a gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

from gradwire_lab.experiments.claim import Basis, Claim, Published, near, only
from gradwire_lab.experiments.experiment import Cell, Row, cells_of
from gradwire_lab.experiments.papers.exhibit import FLOATING, each, exhibit, paper, row_of

PLACE = "table 1"
SERVERS = 16
TERMS = {
    "parameter server": (2 * SERVERS, 2 * SERVERS),
    "tree": (2 * log2(SERVERS), 2 * log2(SERVERS)),
    "ring": (2 * (SERVERS - 1) / SERVERS, 2 * (SERVERS - 1)),
    "butterfly": (2 * (SERVERS - 1) / SERVERS, 2 * log2(SERVERS)),
}
"""The published factors of n / BW and of the latency, for 16 servers."""
EXACT = 1e-6


@dataclass(frozen=True)
class StudyTable1Options:
    """The option: the numbers of servers."""

    servers: tuple[int, ...]


def measure(_options: StudyTable1Options, cell: Cell) -> Mapping[str, Any]:
    """Simulate all ranks' schedules, with a cost of 1 per message and then per byte."""
    from gradwire import collectives
    from gradwire_lab.closed_forms.formulas import AlphaBetaGamma
    from gradwire_lab.closed_forms.network import Network

    is_server = cell["algorithm"] == "parameter server"  # one more host than workers
    collective = collectives.get("star" if is_server else cell["algorithm"])
    world = cell["servers"] + is_server

    def walked(alpha_s: float, nbytes: float) -> float:
        network = Network.uniform(world, AlphaBetaGamma(alpha_s, 1.0))
        return network.simulate(collective, nbytes).total_s

    return {"messages": walked(1.0, 0.0), "bytes": walked(0.0, 1.0)}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the terms at 16 servers with the published terms."""
    return [
        Claim(
            f"{algorithm}, 16 servers: {text} term",
            only(row_of(rows, algorithm=algorithm, servers=SERVERS)[name]),
            near(published, EXACT),
            unit="",
            published=Published(PLACE, published),
            basis=Basis.MODELLED,
        )
        for algorithm, (moved, messages) in TERMS.items()
        for name, published, text in (("bytes", moved, "bandwidth"), ("messages", messages, "latency"))
    ]


EXHIBIT = exhibit(
    "study",
    PLACE,
    "how much does each algorithm move, one message after the other?",
    cells=lambda options: cells_of(algorithm=TERMS, servers=options.servers),
    run=each(measure),
    claims=claims,
    quick=StudyTable1Options((2, 4, 8, 16)),
    full=StudyTable1Options((2, 4, 8, 16, 32, 64, 128)),
    scaling="modelled: the schedules that training uses are simulated for the paper's 16 servers, and "
    "nothing is exchanged.",
    origins={
        "SERVERS TERMS servers": paper("table 1"),
        "EXACT": FLOATING,
    },
    seconds=(2, 3),
)
