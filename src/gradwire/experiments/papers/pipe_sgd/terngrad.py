"""Section 3.2: the overhead of TernGrad inside the all-reduce, compared with communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gradwire.experiments.claim import RATIO, Claim, Published, at_most, only, within
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit, row_of
from gradwire.experiments.papers.origins import RUN_TIME, chosen, origins, paper

PLACE = "section 3.2"
EXACT, TERNARY = "identity", "terngrad"
SMALLER = {TERNARY: 16, "truncate:16": 2, "quantize:8": 4}
"""What each codec divides 32 bits by."""
WORLD, NBYTES_PER_S, LATENCY_S = 4, 1.25e9, 50e-6
OVER_NONE, OVER_COMPRESSED = (1.6, 2.3), (25.6, 36.8)
BEYOND = 0.1
"""The share by which an overhead may leave the published range, whose ends have two and three digits."""


@dataclass(frozen=True)
class Options:
    """Bytes of a gradient, and exchanges of a cell."""

    nbytes: int
    repeats: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each codec, and cells without one for all bytes and for those that a codec sends."""
    sent = [options.nbytes, *(options.nbytes // smaller for smaller in SMALLER.values())]
    return [
        *({"codec": codec, "nbytes": options.nbytes} for codec in SMALLER),
        *({"codec": EXACT, "nbytes": nbytes} for nbytes in sent),
    ]


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Exchange around a ring of threads over links paced to 10 Gbit/s."""
    from gradwire.experiments.papers.threads import exchange_s

    return {
        "seconds": exchange_s(
            WORLD, "ring", cell["codec"], cell["nbytes"], NBYTES_PER_S, LATENCY_S, options.repeats
        )
    }


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare what a codec adds to an exchange with what its bytes, and all bytes, take without it."""
    nbytes = row_of(rows, codec=TERNARY)["nbytes"]

    def exchange_s(codec: str, smaller: int = 1) -> float:
        return float(median(row_of(rows, codec=codec, nbytes=nbytes // smaller)["seconds"]))

    sent_s = {codec: exchange_s(EXACT, smaller) for codec, smaller in SMALLER.items()}
    added_s = {codec: exchange_s(codec) - sent_s[codec] for codec in SMALLER}
    found = [
        Claim(
            f"TernGrad's overhead over {name}",
            only(added_s[TERNARY] / other),
            within(published, BEYOND),
            unit=RATIO,
            published=Published(PLACE, published),
        )
        for name, other, published in (
            ("uncompressed communication", exchange_s(EXACT), OVER_NONE),
            ("compressed communication", sent_s[TERNARY], OVER_COMPRESSED),
        )
    ]
    return found + [
        Claim(
            f"overhead of {codec} over its compressed communication, which masks it",
            only(added_s[codec] / sent_s[codec]),
            at_most(1.0),
            unit=RATIO,
            published=Published(PLACE),
        )
        for codec in SMALLER
        if codec != TERNARY
    ]


ORIGINS = origins(
    WORLD=paper("section 4"),
    NBYTES_PER_S=paper("section 4"),
    LATENCY_S=chosen("of Ethernet"),
    OVER_NONE=paper("section 3.2"),
    OVER_COMPRESSED=paper("section 3.2"),
    SMALLER=paper("section 3.2: 16 and 8 bits, and 25.6 over 1.6"),
    BEYOND=chosen("the published ends have two and three digits"),
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
    "MB (32 MB with --full). The overhead is what TernGrad's exchange takes longer than one of as many bytes "
    "without a codec.",
    origins=ORIGINS,
    seconds=(5, 90),
    version=2,
)
