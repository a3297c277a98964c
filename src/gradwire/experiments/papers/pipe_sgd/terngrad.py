"""Section 3.2: the overhead of TernGrad inside the all-reduce, compared with communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gradwire.experiments.claim import RATIO, Claim, Published, only, within
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit, row_of
from gradwire.experiments.papers.origins import RUN_TIME, chosen, origins, paper

PLACE = "section 3.2"
TERNARY, EXACT = "terngrad", "identity"
SMALLER = 16
"""TernGrad's two bits, of 32."""
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
    """Return a cell with TernGrad, and two without a codec: of as many bytes, and of as many as it sends."""
    return [
        {"codec": TERNARY, "nbytes": options.nbytes},
        {"codec": EXACT, "nbytes": options.nbytes},
        {"codec": EXACT, "nbytes": options.nbytes // SMALLER},
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
    """Compare what the codec adds to an exchange with what its bytes, and all bytes, take."""
    nbytes = row_of(rows, codec=TERNARY)["nbytes"]
    ternary, whole, compressed = (
        median(row_of(rows, codec=codec, nbytes=sent)["seconds"])
        for codec, sent in ((TERNARY, nbytes), (EXACT, nbytes), (EXACT, nbytes // SMALLER))
    )
    return [
        Claim(
            f"TernGrad's overhead over {name}",
            only((ternary - compressed) / other),
            within(published, BEYOND),
            unit=RATIO,
            published=Published(PLACE, published),
        )
        for name, other, published in (
            ("uncompressed communication", whole, OVER_NONE),
            ("compressed communication", compressed, OVER_COMPRESSED),
        )
    ]


ORIGINS = origins(
    WORLD=paper("section 4"),
    NBYTES_PER_S=paper("section 4"),
    LATENCY_S=chosen("of Ethernet"),
    OVER_NONE=paper("section 3.2"),
    OVER_COMPRESSED=paper("section 3.2"),
    SMALLER=chosen("two bits instead of 32, as in 25.6 over 1.6"),
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
    seconds=(3, 60),
    version=2,
)
