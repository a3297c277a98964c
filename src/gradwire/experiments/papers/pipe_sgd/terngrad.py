"""Section 3.2: TernGrad inside the all-reduce, compared with none and with light compression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gradwire.experiments.claim import RATIO, Bound, Claim, Explanation, Published, only
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit, row_of
from gradwire.experiments.papers.origins import RUN_TIME, chosen, origins, paper

PLACE = "section 3.2"
CODECS = ("identity", "truncate:16", "quantize:8", "terngrad")
WORLD, NBYTES_PER_S, LATENCY_S = 4, 1.25e9, 50e-6
OVER_NONE, OVER_COMPRESSED = (1.6, 2.3), (25.6, 36.8)
ONE_PASS = (
    "the codec's kernel needs one pass with vector instructions and a hash for random "
    "numbers, so it costs one to three times as much as the other codecs."
)
LIKE_LIGHT = 3.0
"""Times the exchange of T or Q, whose codecs take one pass without random numbers."""


@dataclass(frozen=True)
class Options:
    """Bytes of a gradient, and exchanges of a cell."""

    nbytes: int
    repeats: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each codec."""
    return [{"codec": codec, "nbytes": options.nbytes} for codec in CODECS]


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Exchange around a ring of threads over links paced to 10 Gbit/s."""
    from gradwire.experiments.papers.threads import exchange_s

    return {
        "seconds": exchange_s(
            WORLD, "ring", cell["codec"], cell["nbytes"], NBYTES_PER_S, LATENCY_S, options.repeats
        )
    }


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare TernGrad's time with the others'."""
    times = {codec: median(row_of(rows, codec=codec)["seconds"]) for codec in CODECS}
    light = min(times["truncate:16"], times["quantize:8"])
    return [
        Claim(
            f"TernGrad's exchange over {name}",
            only(times["terngrad"] / other),
            Bound(*published),
            unit=RATIO,
            published=Published(PLACE, published),
            otherwise=Explanation(ONE_PASS, Bound(light / other, LIKE_LIGHT * light / other)),
        )
        for name, other, published in (
            ("the uncompressed one", times["identity"], OVER_NONE),
            ("one with T or Q", light, OVER_COMPRESSED),
        )
    ]


ORIGINS = origins(
    WORLD=paper("section 4"),
    NBYTES_PER_S=paper("section 4"),
    LATENCY_S=chosen("of Ethernet"),
    OVER_NONE=paper("section 3.2"),
    OVER_COMPRESSED=paper("section 3.2"),
    LIKE_LIGHT=chosen("one pass with random numbers instead of one without"),
    nbytes=RUN_TIME,
    repeats=RUN_TIME,
)
EXHIBIT = exhibit(
    "pipe-sgd",
    f"{PLACE}, TernGrad",
    "how long does an all-reduce take with TernGrad inside?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options(8_000_000, 7),
    full=Options(32_000_000, 21),
    scaling="a ring of four threads on two cores over links paced to 10 Gbit/s, with gradients of 8 "
    "MB (32 MB with --full).",
    origins=ORIGINS,
    seconds=(3, 60),
)
