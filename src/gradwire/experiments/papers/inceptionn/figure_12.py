"""Figure 12: training time with an aggregator and with a ring, with and without the codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradwire.experiments.claim import RATIO, Claim, Explanation, Published, at_least, only
from gradwire.experiments.experiment import Cell, Reporter, Row
from gradwire.experiments.papers.exhibit import exhibit
from gradwire.experiments.papers.jobs import Training, train

PLACE = "figure 12"
CODEC = "inceptionn:2^-10"
RUNS = {"WA": "server", "WA+C": f"server:{CODEC}", "INC": "sync", "INC+C": f"sync:{CODEC}"}
TOTAL_CUT, COMMUNICATION_CUT = (0.31, 0.52), (0.36, 0.58)
"""Published of INC compared with WA, over the four networks."""
AGGREGATOR_CUT, FULL_CUT, RING_CUT = 0.308, (0.709, 0.807), 0.539
"""Of the communication: WA+C and INC+C compared with WA, and INC+C compared with INC."""
SPEEDUP = (2.2, 3.1)
HIDDEN = (
    "the aggregator receives gradients while it still sends weights to other workers, so part of what the "
    "codec saves is hidden already."
)


@dataclass(frozen=True)
class Options:
    """The network, the rate of each host, and steps."""

    model: str
    link: str
    steps: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each way to train."""
    return [{"model": options.model, "link": options.link, "run": name} for name in RUNS]


def run(options: Options, cells: Sequence[Cell], _before: Sequence[Row], report: Reporter) -> None:
    """Train with four processes, and a fifth for the aggregator, over paced links."""
    for cell in cells:
        training = Training(
            (RUNS[cell["run"]],), model=cell["model"], link=cell["link"], max_steps=options.steps
        )
        (found,) = train(training)
        report({**cell, **found})


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the time outside of computation, and all of it."""
    communicating = {row["run"]: row["step_s"] - row["compute_s"] for row in rows}
    total = {row["run"]: row["step_s"] for row in rows}

    def cut(times: dict[str, float], own: str, other: str) -> Mapping[str, float | None]:
        return only(1 - times[own] / times[other])

    return [
        Claim(
            "communication saved by the ring",
            cut(communicating, "INC", "WA"),
            at_least(COMMUNICATION_CUT[0]),
            published=Published(PLACE, COMMUNICATION_CUT),
        ),
        Claim(
            "time saved by the ring",
            cut(total, "INC", "WA"),
            at_least(TOTAL_CUT[0]),
            published=Published(PLACE, TOTAL_CUT),
        ),
        Claim(
            "communication saved by compressing an aggregator's gradients",
            cut(communicating, "WA+C", "WA"),
            at_least(0.9 * AGGREGATOR_CUT),
            published=Published(PLACE, AGGREGATOR_CUT),
            otherwise=Explanation(HIDDEN, at_least(0.1)),
        ),
        Claim(
            "communication saved by the ring with the codec",
            cut(communicating, "INC+C", "WA"),
            at_least(FULL_CUT[0]),
            published=Published(PLACE, FULL_CUT),
        ),
        Claim(
            "communication saved by the codec in the ring",
            cut(communicating, "INC+C", "INC"),
            at_least(0.9 * RING_CUT),
            published=Published(PLACE, RING_CUT),
        ),
        Claim(
            "speed-up of the ring with the codec",
            only(total["WA"] / total["INC+C"]),
            at_least(SPEEDUP[0]),
            unit=RATIO,
            published=Published(PLACE, SPEEDUP),
        ),
    ]


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "what do a ring and the codec save of the training time?",
    cells=cells,
    run=run,
    claims=claims,
    quick=Options("cnn", "10mbit", 14),
    full=Options("hdc", "100mbit", 112),
    scaling="a small CNN (HDC with --full) on scikit-learn's digits, four processes on two cores, "
    "and links paced to 10 Mbit/s (100 with --full) instead of 10 Gbit/s, so that the "
    "exchange dominates as it does there. The codec runs in software. Rules are the smallest "
    "published savings: WA's weights here come straight from the aggregator, instead of "
    "through a tree.",
    seconds=(20, 600),
)
