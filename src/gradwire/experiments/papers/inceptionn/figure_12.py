"""Figure 12: training time with an aggregator and with a ring, with and without the codec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.experiments.claim import RATIO, Claim, Published, only, within
from gradwire.experiments.experiment import Cell, Reporter, Row
from gradwire.experiments.learning import GOALS, Trainings
from gradwire.experiments.papers.exhibit import exhibit
from gradwire.experiments.papers.jobs import Training, train
from gradwire.experiments.papers.origins import RUN_TIME, TWO_CORES, chosen, origins, paper

PLACE = "figure 12"
CODEC = "inceptionn:2^-10"
RUNS = {"WA": "server", "WA+C": f"server:{CODEC}", "INC": "sync", "INC+C": f"sync:{CODEC}"}
TOTAL_CUT, COMMUNICATION_CUT = (0.31, 0.52), (0.36, 0.58)
"""Published of INC compared with WA, over the four networks."""
AGGREGATOR_CUT, FULL_CUT, RING_CUT = 0.308, (0.709, 0.807), 0.539
"""Of the communication: WA+C and INC+C compared with WA, and INC+C compared with INC."""
SPEEDUP = (2.2, 3.1)
COMMUNICATING = (0.71, 0.80)
"""Of WA's time, over the four networks of table II."""
BEYOND = 0.1
"""The share by which a figure may leave the published ones: they have two digits and four networks."""
GOAL = GOALS["digits"]


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
    """Compare the time outside of computation, and all of it; each figure rests on its two trainings."""
    communicating = {row["run"]: row["step_s"] - row["compute_s"] for row in rows}
    total = {row["run"]: row["step_s"] for row in rows}

    def cut(
        text: str, times: dict[str, float], own: str, other: str, published: float | tuple[float, float]
    ) -> Claim:
        ends = published if isinstance(published, tuple) else (published, published)
        return Claim(
            text,
            only(1 - times[own] / times[other]),
            within(ends, BEYOND),
            published=Published(PLACE, published),
            rests_on=_trainings(rows, own, other),
        )

    return [
        Claim(
            "share of WA's time outside of computation",
            only(communicating["WA"] / total["WA"]),
            within(COMMUNICATING, BEYOND),
            published=Published("table II", COMMUNICATING),
            rests_on=_trainings(rows, "WA"),
        ),
        cut("communication saved by the ring", communicating, "INC", "WA", COMMUNICATION_CUT),
        cut("time saved by the ring", total, "INC", "WA", TOTAL_CUT),
        cut(
            "communication saved by compressing an aggregator's gradients",
            communicating,
            "WA+C",
            "WA",
            AGGREGATOR_CUT,
        ),
        cut("communication saved by the ring with the codec", communicating, "INC+C", "WA", FULL_CUT),
        cut("communication saved by the codec in the ring", communicating, "INC+C", "INC", RING_CUT),
        Claim(
            "speed-up of the ring with the codec",
            only(total["WA"] / total["INC+C"]),
            within(SPEEDUP, BEYOND),
            unit=RATIO,
            published=Published(PLACE, SPEEDUP),
            rests_on=_trainings(rows, "INC+C", "WA"),
        ),
    ]


def _trainings(rows: Sequence[Row], *runs: str) -> list[Trainings]:
    """Return what a figure of these runs rests on: each with the same method without the codec."""

    def ends(run: str) -> list[float]:
        return [row["accuracy"] for row in rows if row["run"] == run]

    return [Trainings(run, ends(run), ends(run.removesuffix("+C")), GOAL) for run in runs]


ORIGINS = origins(
    TOTAL_CUT=paper("figure 12"),
    COMMUNICATION_CUT=paper("figure 12"),
    AGGREGATOR_CUT=paper("figure 12"),
    FULL_CUT=paper("figure 12"),
    RING_CUT=paper("figure 12"),
    SPEEDUP=paper("figure 12"),
    COMMUNICATING=paper("table II"),
    BEYOND=chosen("published figures have two digits and four networks"),
    model=RUN_TIME,
    link=TWO_CORES,
    steps=RUN_TIME,
)
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
    "exchange dominates more than it does there. The codec runs in software. WA's weights here "
    "come straight from the aggregator, instead of through a tree.",
    origins=ORIGINS,
    seconds=(20, 600),
)
