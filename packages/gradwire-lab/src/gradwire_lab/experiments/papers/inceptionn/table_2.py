"""Table II: the parts of the time of a step with an aggregator, for four networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gradwire_lab.closed_forms.formulas import AlphaBetaGamma, WorkerAggregatorStep, worker_aggregator_s
from gradwire_lab.experiments.claim import Basis, Claim, Explanation, Published, near, only
from gradwire_lab.experiments.experiment import Cell, Row, cells_of
from gradwire_lab.experiments.papers.exhibit import chosen, each, exhibit, paper, row_of

PLACE = "table II"
WORKERS, ITERATIONS = 4, 100
STEPS = {
    "AlexNet": WorkerAggregatorStep(3.13, 16.22, 5.68, 8.94, 148.71, 13.67),
    "HDC": WorkerAggregatorStep(0.08, 0.07, 0.0, 0.09, 1.36, 0.09),
    "ResNet-50": WorkerAggregatorStep(2.63, 4.87, 2.24, 3.68, 60.58, 1.55),
    "VGG-16": WorkerAggregatorStep(32.25, 142.34, 12.09, 19.89, 583.58, 30.50),
}
"""The published seconds of 100 iterations."""
TOTALS_S = {"AlexNet": 196.35, "HDC": 1.70, "ResNet-50": 75.55, "VGG-16": 823.65}
NBYTES = {"AlexNet": 233e6, "HDC": 2.5e6, "ResNet-50": 98e6, "VGG-16": 525e6}
CALIBRATED = "AlexNet"
ROUNDED, WITHIN = 0.007, 0.2
OF_SUM, SUM_S = 1e-5, 820.65
SUM = "the parts that are printed for VGG-16 add up to 820.65 s, not to 823.65 s."


@dataclass(frozen=True)
class NetworksOptions:
    """The option: the networks."""

    networks: tuple[str, ...]


def measure(_options: NetworksOptions, cell: Cell) -> Mapping[str, Any]:
    """Sum the parts, and predict the communication at the rate that AlexNet implies."""
    unit_s = worker_aggregator_s(WORKERS, NBYTES[CALIBRATED], AlphaBetaGamma(0.0, 1.0))
    link = AlphaBetaGamma(0.0, STEPS[CALIBRATED].communicate_s / ITERATIONS / unit_s)
    step = STEPS[cell["network"]]
    return {
        "total_s": step.total_s,
        "communication_share": step.communication_share,
        "predicted_communicate_s": ITERATIONS * worker_aggregator_s(WORKERS, NBYTES[cell["network"]], link),
    }


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare totals with the sums of their parts, and communication times with the model's."""
    found, claim = [], partial(Claim, unit="s")
    for network, total_s in TOTALS_S.items():
        row, is_wrong = row_of(rows, network=network), network == "VGG-16"
        found.append(
            claim(
                f"{network}: sum of the steps' times",
                only(row["total_s"]),
                near(total_s, OF_SUM if is_wrong else ROUNDED),
                published=Published(PLACE, total_s, SUM if is_wrong else ""),
                otherwise=Explanation(SUM, near(SUM_S, OF_SUM)) if is_wrong else None,
                basis=Basis.ARITHMETIC,
            )
        )
        if network != CALIBRATED:
            predicted, published_s = row["predicted_communicate_s"], STEPS[network].communicate_s
            found.append(
                claim(
                    f"{network}: communication, at AlexNet's rate",
                    only(predicted),
                    near(published_s, WITHIN),
                    published=Published(PLACE, published_s),
                    basis=Basis.CALIBRATED,
                )
            )
    return found


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "where does the time of a step with an aggregator go?",
    cells=lambda options: cells_of(network=options.networks),
    run=each(measure),
    claims=claims,
    quick=NetworksOptions(tuple(STEPS)),
    full=NetworksOptions(tuple(STEPS)),
    scaling="nothing is measured: the published parts are added up, and the paper's formula for "
    "communication gets its rate from AlexNet's row. Figure 12 has measured parts.",
    origins={
        "WORKERS ITERATIONS TOTALS_S SUM_S networks": paper("table II"),
        "NBYTES": paper("table I"),
        "ROUNDED": chosen("parts are rounded to hundredths of a second"),
        "OF_SUM": chosen("times have five digits"),
        "WITHIN": chosen("one rate for messages of 2.5 to 525 MB"),
    },
    seconds=(1, 1),
)
