"""The convex network: the excess loss over T steps with K under way, and the bound 8 F L sqrt(K / T)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gradwire.experiments.claim import Bound, Claim, Explanation, Published, at_most, near, only
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.learning import exact_trainings
from gradwire.experiments.papers.exhibit import exhibit
from gradwire.experiments.papers.origins import RUN_TIME, chosen, origins, paper
from gradwire.experiments.papers.pipe_sgd.figure_4 import GOAL
from gradwire.experiments.papers.pipe_sgd.lengths import Options, cells, mean, pipelines, slopes, train
from gradwire.experiments.papers.side_by_side import side_by_side

if TYPE_CHECKING:
    import torch

PLACE = "section 3.3"
SLOPE = -0.5
"""Of the logarithm of the excess loss over that of T: the bound falls as sqrt(1 / T)."""
ACCURACY_LOST = 0.005
"""Accuracies are equal that differ by half a point; published are .4793, and .4797 with K = 2."""
WITHIN = 0.2
"""The share by which a slope over six lengths may differ from the bound's."""
FASTER = "the paper's rate is a bound from above, and this loss falls faster than it must."
BATCH = 25


def measure(_options: Options, cell: Cell) -> Mapping[str, Any]:
    """Train the last layer with a rate of sqrt(1 / (K T)), as the bound wants it; keep the mean loss."""
    import torch
    from torch import nn

    from gradwire.experiments.papers.inceptionn.training import one_thread
    from gradwire.job.data import load

    images = load("digits")
    with one_thread(cell["seed"]):
        model = nn.Linear(images.image_shape[0] * images.image_shape[1], images.classes)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        rate = RATE / (cell["pipeline"] * cell["steps"]) ** 0.5
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        losses: list[float] = []
        train(model, optimizer, cell, lambda: _loss(model, images.train_batch(_drawn(images)), losses))
        whole = torch.arange(len(images.train_labels))
        x, labels = images.train_batch(whole)
        with torch.no_grad():
            final = float(nn.functional.cross_entropy(model(x.flatten(1)), labels))
            right = sum(int((model(x.flatten(1)).argmax(1) == y).sum()) for x, y in images.test_batches())
    return {"mean_loss": fmean(losses), "loss": final, "accuracy": right / len(images.test_labels)}


RATE = 10.0
"""The constant of the learning rate, which the bound leaves open; much smaller ones learn too slowly."""


def _drawn(images: Any) -> torch.Tensor:
    import torch

    return torch.randint(len(images.train_labels), (BATCH,))


def _loss(
    model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor], losses: list[float]
) -> torch.Tensor:
    from torch import nn

    loss = nn.functional.cross_entropy(model(batch[0].flatten(1)), batch[1])
    losses.append(loss.item())
    return loss


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Fit the mean excess loss of a training over its length, and compare K = 2 with K = 1."""
    longest = max(row["steps"] for row in rows)
    alone = mean(rows, "mean_loss", 1, longest)
    # The bound's constant is fitted with K = 1; K steps under way may cost sqrt(K) times as much.
    bounded = {
        f"K = {pipeline}": mean(rows, "mean_loss", pipeline, longest) / (pipeline**0.5 * alone)
        for pipeline in pipelines(rows)[1:]
    }
    lost = mean(rows, "accuracy", 1, longest) - mean(rows, "accuracy", 2, longest)
    exact = [row["accuracy"] for row in rows if (row["pipeline"], row["steps"]) == (1, longest)]
    learned = [exact_trainings("K = 1", exact, GOAL)]
    return [
        Claim(
            "mean loss over T: slope of the logarithms",
            slopes(rows, "mean_loss"),
            near(SLOPE, WITHIN),
            of_each=True,
            unit="",
            published=Published(PLACE, SLOPE),
            better=Explanation(FASTER, at_most((1 - WITHIN) * SLOPE)),
            rests_on=learned,
        ),
        Claim(
            "mean loss over sqrt(K) times that with K = 1",
            bounded,
            at_most(1.0),
            of_each=True,
            unit="",
            published=Published(PLACE, 1.0, is_limit=True),
            rests_on=learned,
        ),
        Claim(
            "accuracy lost by K = 2",
            only(lost),
            Bound(-ACCURACY_LOST, ACCURACY_LOST),
            published=Published("figure 4", -0.0004),
            rests_on=learned,
        ),
    ]


ORIGINS = origins(
    SLOPE=paper("section 3.3"),
    ACCURACY_LOST=chosen("half a point, as for figure 4"),
    WITHIN=chosen("six lengths"),
    BATCH=paper("section 4"),
    RATE=chosen("the bound leaves it open"),
    pipelines=paper("section 3.1"),
    steps=RUN_TIME,
    seeds=RUN_TIME,
)
EXHIBIT = exhibit(
    "pipe-sgd",
    f"{PLACE}, convex",
    "how does a convex training's loss fall with T steps and K under way?",
    cells=cells,
    run=side_by_side(measure),
    claims=claims,
    quick=Options((1, 2, 4), (100, 400, 1600), (1, 2)),
    full=Options((1, 2, 3, 4), (100, 200, 400, 800, 1600, 3200), (1, 2, 3, 4, 5)),
    scaling="one linear layer on scikit-learn's digits in the place of the last layer on CIFAR-100's "
    "features, on one rank. The least loss counts as 0, as the layer comes close to that.",
    origins=ORIGINS,
    seconds=(16, 240),
)
