"""Figure 5: the distribution of gradients at early, middle, and final stages of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradwire.experiments.claim import Claim, Published, at_least
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit

if TYPE_CHECKING:
    import torch

PLACE = "figure 5"
STAGES = ("early", "middle", "final")
EDGES = (2.0**-10, 2.0**-8, 2.0**-6, 2.0**-4, 2.0**-2, 1.0)
NORMAL_KURTOSIS = 3.0
"""A normal distribution's; a larger one is peaked around zero."""


@dataclass(frozen=True)
class Options:
    """The network, and epochs."""

    model: str
    epochs: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each stage."""
    from gradwire.experiments.papers.inceptionn.training import data_name

    return [{"model": options.model, "data": data_name(), "stage": stage} for stage in STAGES]


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Train up to a stage, and describe the gradient there."""
    from gradwire.experiments.papers.inceptionn.training import dataset, train

    epochs = max(1, round(options.epochs * (STAGES.index(cell["stage"]) / 2)))
    kept: list[torch.Tensor] = []

    def watch(_step: int, gradient: torch.Tensor, _sent: torch.Tensor) -> None:
        kept[:] = [gradient.double()]

    train(dataset(cell["data"]), cell["model"], epochs, 1, watch=watch)
    return describe(kept[0])


def describe(gradient: torch.Tensor) -> Mapping[str, Any]:
    """Return the shares below each edge, the standard deviation, and the kurtosis of a gradient."""
    spread = gradient - gradient.mean()
    variance = float((spread**2).mean())
    return {
        "below": [[edge, float((gradient.abs() < edge).double().mean())] for edge in EDGES],
        "largest": float(gradient.abs().max()),
        "std": variance**0.5,
        "kurtosis": float((spread**4).mean()) / variance**2,
    }


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Judge the range and the peak at each stage."""
    return [
        Claim(
            "values between -1 and 1",
            {row["stage"]: row["below"][-1][1] for row in rows},
            at_least(0.999),
            of_each=True,
            published=Published(PLACE),
        ),
        Claim(
            "kurtosis: a peak around zero (3 is a normal distribution's)",
            {row["stage"]: row["kurtosis"] for row in rows},
            at_least(2 * NORMAL_KURTOSIS),
            of_each=True,
            unit="",
            published=Published(PLACE),
        ),
        Claim(
            "values below 2^-4",
            {row["stage"]: dict(map(tuple, row["below"]))[2.0**-4] for row in rows},
            at_least(0.9),
            of_each=True,
            published=Published(PLACE),
        ),
    ]


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "how are gradients distributed early, midway, and at the end?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options("cnn", 8),
    full=Options("cnn", 30),
    scaling="a small CNN on MNIST if GRADWIRE_DATA has it, else on scikit-learn's digits, instead of "
    "AlexNet. The paper plots the figure without numbers: the rules are its words, that "
    "values are mostly between -1 and 1 and peak tightly around zero.",
    seconds=(3, 120),
)
