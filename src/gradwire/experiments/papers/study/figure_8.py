"""Figure 8: GoogLeNet's 53 MB through a butterfly, compared with the theoretical best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gradwire.experiments.claim import Claim, Published, at_most, only
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit, row_of
from gradwire.experiments.papers.origins import RUN_TIME, TWO_CORES, origins, paper
from gradwire.timing.closed_form.formulas import AlphaBetaGamma, butterfly_s

PLACE = "figure 8"
NBYTES, NBYTES_PER_S, LATENCY_S = 53e6, 6e9, 2.5e-6
"""Of GoogLeNet's gradient, and the rate and latency that the paper has measured."""
SERVERS = 16
MOST = 2.0
"""Published: how many times the theoretical best an all-reduce took on 16 servers, at most."""


@dataclass(frozen=True)
class Options:
    """Numbers of servers, by what bytes and rate are divided, and exchanges of a cell."""

    servers: tuple[int, ...]
    smaller: int
    slower: int
    repeats: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each number of servers."""
    return [
        {"servers": servers, "nbytes": round(NBYTES / options.smaller / 4) * 4, "slower": options.slower}
        for servers in options.servers
    ]


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Exchange on ranks that are threads; the best is the formula's for their links."""
    from gradwire.experiments.papers.threads import exchange_s

    rate, latency_s = NBYTES_PER_S / cell["slower"], LATENCY_S
    link = AlphaBetaGamma(latency_s, 1 / rate)
    published = AlphaBetaGamma(LATENCY_S, 1 / NBYTES_PER_S)
    return {
        "seconds": exchange_s(
            cell["servers"], "butterfly", "identity", cell["nbytes"], rate, latency_s, options.repeats
        ),
        "best_s": butterfly_s(cell["servers"], cell["nbytes"], link),
        "published_best_s": butterfly_s(cell["servers"], NBYTES, published),
    }


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the measured time on 16 servers with the best."""
    row = row_of(rows, servers=SERVERS)
    by_servers = {str(each["servers"]): median(each["seconds"]) / each["best_s"] for each in rows}
    return [
        Claim(
            "butterfly of 53 MB on 16 servers, over the best",
            only(median(row["seconds"]) / row["best_s"]),
            at_most(MOST),
            unit="x",
            published=Published(PLACE, MOST, is_limit=True),
        ),
        Claim(
            "the same on 2 to 16 servers",
            by_servers,
            at_most(MOST),
            of_each=True,
            unit="x",
            published=Published(PLACE, MOST, is_limit=True),
        ),
    ]


ORIGINS = origins(
    NBYTES=paper("figure 8"),
    NBYTES_PER_S=paper("figure 7"),
    LATENCY_S=paper("figure 7"),
    SERVERS=paper("figure 8"),
    MOST=paper("figure 8"),
    servers=paper("figure 8"),
    smaller=RUN_TIME,
    slower=TWO_CORES,
    repeats=RUN_TIME,
)
EXHIBIT = exhibit(
    "study",
    PLACE,
    "how near to the theoretical best does a butterfly come?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options((2, 4, 8, 16), 20, 240, 3),
    full=Options((2, 4, 8, 16), 4, 240, 7),
    scaling="16 threads of one process; the gradient is 20 times smaller (4 times with --full), and links "
    "have 25 MB/s instead of 6 GB/s, because all ranks share two cores.",
    origins=ORIGINS,
    seconds=(5, 120),
)
