"""Figure 7: the line rate between two hosts, by message size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.experiments.claim import Bound, Claim, Explanation, Published, at_least, at_most, only, within
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit
from gradwire.experiments.papers.origins import RUN_TIME, TWO_CORES, chosen, origins, paper

PLACE = "figure 7"
NOMINAL_NBYTES_PER_S, LATENCY_S = 125e6, 100e-6
PUBLISHED_SHARE, PUBLISHED_LATENCY_US = 6 / 7, 2.5
MOST_LATENCY_US = 5000.0
"""Of a message between two threads of Python, beside the link's own 100 us."""
LARGE_NBYTES = 1 << 20


@dataclass(frozen=True)
class Options:
    """Powers of two of the message sizes, and seconds of each figure."""

    powers: tuple[int, ...]
    time_s: float


def cells(_options: Options) -> list[Cell]:
    """Return the one line."""
    return [{"nominal_nbytes_per_s": NOMINAL_NBYTES_PER_S, "nominal_latency_s": LATENCY_S}]


def measure(options: Options, _cell: Cell) -> Mapping[str, Any]:
    """Measure the line as ``gradwire bench line-rate`` does."""
    from gradwire.experiments.papers.threads import on_threads
    from gradwire.timing.measure.line_rate import Effort
    from gradwire.timing.measure.line_rate import measure as measure_line

    effort = Effort(tuple(1 << power for power in options.powers), repeats=3, time_s=options.time_s)
    points = on_threads(
        2, lambda link: measure_line(link, 1 - link.rank, effort), NOMINAL_NBYTES_PER_S, LATENCY_S
    )[0]
    return {
        "points": [
            {"nbytes": each.nbytes, "time_s": each.time_s, "nbytes_per_s": each.nbytes_per_s}
            for each in points
        ]
    }


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the plateau with the nominal rate, and the latency of one byte."""
    points = rows[0]["points"]
    plateau = max(point["nbytes_per_s"] for point in points)
    large = [point["nbytes_per_s"] for point in points if point["nbytes"] >= LARGE_NBYTES]
    latency_us = 1e6 * next(point["time_s"] for point in points if point["nbytes"] == 1)
    software = Explanation(
        "ranks here are threads of Python over a link with a latency of 100 us, not InfiniBand's verbs.",
        at_most(MOST_LATENCY_US),
    )
    return [
        Claim(
            "plateau, of the nominal rate",
            only(plateau / rows[0]["nominal_nbytes_per_s"]),
            Bound(0.95 * PUBLISHED_SHARE, 1.0),
            published=Published(PLACE, PUBLISHED_SHARE),
        ),
        Claim(
            "rate of messages of 1 MiB and more, of the plateau",
            only(min(large, default=0.0) / plateau),
            at_least(0.9),
            published=Published(PLACE),
        ),
        Claim(
            "latency: time of a message of 1 byte",
            only(latency_us),
            within((PUBLISHED_LATENCY_US, 2 * PUBLISHED_LATENCY_US), 0.5),
            unit="us",
            published=Published(PLACE, PUBLISHED_LATENCY_US),
            otherwise=software,
        ),
    ]


ORIGINS = origins(
    NOMINAL_NBYTES_PER_S=TWO_CORES,
    LATENCY_S=TWO_CORES,
    PUBLISHED_SHARE=paper("figure 7"),
    PUBLISHED_LATENCY_US=paper("figure 7"),
    MOST_LATENCY_US=chosen("what a message between two threads of Python may take"),
    LARGE_NBYTES=chosen("messages whose latency is a hundredth of their time"),
    powers=paper("figure 7"),
    time_s=RUN_TIME,
)
EXHIBIT = exhibit(
    "study",
    PLACE,
    "what rate and latency does a line have, measured by message size?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options((0, 10, 14, 18, 20, 22, 23), 0.2),
    full=Options(tuple(range(25)), 1.0),
    scaling="a link between two threads, paced to 1 Gbit/s instead of 56 Gbit/s. For a cluster's own lines, "
    "run gradwire bench line-rate there.",
    origins=ORIGINS,
    seconds=(8, 90),
)
