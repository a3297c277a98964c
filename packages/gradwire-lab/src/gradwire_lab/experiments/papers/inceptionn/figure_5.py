"""Figure 5: the distribution of gradients at early, middle, and final stages of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from gradwire.deferred import torch
from gradwire_lab.experiments.claim import Claim, Published, at_least
from gradwire_lab.experiments.experiment import Cell, Row, cells_of, select
from gradwire_lab.experiments.hosts.training import dataset
from gradwire_lab.experiments.learning import GOALS, exact_trainings
from gradwire_lab.experiments.papers.exhibit import RUN_TIME, chosen, exhibit, groups_side_by_side
from gradwire_lab.experiments.papers.inceptionn.training import train
from gradwire_lab.job.data import at_hand

PLACE = "figure 5"
STAGES = ("early", "middle", "final")
EDGES = (2.0**-10, 2.0**-8, 2.0**-6, 2.0**-4, 2.0**-2, 1.0)
NORMAL_KURTOSIS = 3.0
"""The kurtosis of a normal distribution. A larger kurtosis means a peak around zero."""
MOSTLY, TIGHTLY = 0.999, 0.9
"""The least share of values between -1 and 1, and the least share of values below a sixteenth."""


@dataclass(frozen=True)
class InceptionnFigure5Options:
    """The options: the network, seeds, and steps."""

    network: str
    seeds: tuple[int, ...]
    steps: int


def cells(options: InceptionnFigure5Options) -> list[Cell]:
    """Return a cell for each seed and stage."""
    common = {"network": options.network, "data": at_hand()}
    return cells_of(common, seed=options.seeds, stage=STAGES)


def measure(options: InceptionnFigure5Options, cells: Sequence[Cell]) -> list[Row]:
    """Train once for the cells of one seed, and describe the gradient at each stage."""
    found: dict[str, Mapping[str, Any]] = {}
    last = options.steps - 1
    stages = {min(last, options.steps // 20): "early", options.steps // 2: "middle", last: "final"}

    def watch(step: int, gradient: torch.Tensor) -> None:
        if step in stages:
            found[stages[step]] = describe(gradient.double())

    data, seed = cells[0]["data"], cells[0]["seed"]
    accuracies = train(dataset(data), options.network, options.steps, seed, watch=watch)
    return [{**cell, **found[cell["stage"]], "accuracy": accuracies[options.steps]} for cell in cells]


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
    """Return the claims about range and peak at each stage, as means over the seeds."""
    accuracies = [row["accuracy"] for row in select(rows, stage=STAGES[-1])]
    exact = exact_trainings(rows[0]["network"], accuracies, GOALS[rows[0]["data"]])

    claim = partial(Claim, of_each=True, published=Published(PLACE), rests_on=[exact])

    def means(figure: Callable[[Row], float]) -> dict[str, float]:
        return {stage: fmean(map(figure, select(rows, stage=stage))) for stage in STAGES}

    def below(edge: float) -> dict[str, float]:
        return means(lambda row: dict(map(tuple, row["below"]))[edge])

    text = "kurtosis: a peak around zero (3 is a normal distribution's)"
    kurtosis = means(lambda row: float(row["kurtosis"]))
    return [
        claim("values between -1 and 1", below(1.0), at_least(MOSTLY)),
        claim(text, kurtosis, at_least(2 * NORMAL_KURTOSIS), unit=""),
        claim("values below 2^-4", below(2.0**-4), at_least(TIGHTLY)),
    ]


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "how are gradients distributed early, midway, and at the end?",
    cells=cells,
    run=groups_side_by_side(measure, ("seed",)),
    claims=claims,
    quick=InceptionnFigure5Options("CNN", (1, 2, 3), 168),
    full=InceptionnFigure5Options("CNN", (1, 2, 3), 600),
    scaling="a small CNN on MNIST if GRADWIRE_DATA has it, else on scikit-learn's digits, replaces AlexNet. "
    "The paper plots the figure without numbers, so the rules express its words: most values are "
    "between -1 and 1, with a sharp peak around zero.",
    origins={
        "EDGES": chosen("the bounds of table III, and the ends of the figure's axis"),
        "NORMAL_KURTOSIS": chosen("the kurtosis of a normal distribution"),
        "MOSTLY": chosen("the figure's axis ends at 1"),
        "TIGHTLY": chosen("a peak, which the paper states in words"),
        "network steps": RUN_TIME,
        "seeds": chosen("the minimum for an interval"),
    },
    seconds=(10, 120),
    version=2,
)
