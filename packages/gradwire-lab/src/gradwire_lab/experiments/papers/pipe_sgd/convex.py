"""The convex network: the excess loss after T steps with K in flight, and the bound 8 F L sqrt(K / T)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gradwire.deferred import torch
from gradwire_lab.experiments.claim import Bound, Claim, Published, at_most, only
from gradwire_lab.experiments.experiment import Cell, Row
from gradwire_lab.experiments.hosts.training import accuracy, dataset
from gradwire_lab.experiments.learning import GOALS, Trainings
from gradwire_lab.experiments.papers.exhibit import RUN_TIME, chosen, exhibit, paper, side_by_side
from gradwire_lab.experiments.papers.pipe_sgd.lengths import (
    LengthsOptions,
    WorkerTraining,
    behind,
    cells,
    drawn,
    pipelines,
    rates,
    train,
    values,
)

if TYPE_CHECKING:
    from gradwire_lab.job.data import Dataset

PLACE = "section 3.3"
SLOPE = -0.5
"""The slope of the logarithm of the mean excess loss over log T: the bound falls as sqrt(1 / T)."""
WIDEST = 0.1
"""The largest half-width of a slope's 95 % interval. A wider interval makes the slope meaningless."""
ACCURACY_LOST = 0.005
"""The difference up to which accuracies are equal: half a point (published: .4793 and .4797)."""
BATCH = 25
RATE = 10.0
"""The learning rate's constant, which the bound leaves open; much smaller ones learn too slowly."""


def measure(_options: LengthsOptions, cell: Cell) -> Mapping[str, Any]:
    """Train the last layer at the bound's rate, sqrt(1 / (K T)). Return the mean loss and the accuracy."""
    images, losses = dataset("digits"), list[float]()
    workers = train(cell["pipeline"], cell["steps"], lambda rank: _worker(images, cell, rank, losses))
    model = torch.nn.Sequential(torch.nn.Flatten(), workers[0].model)
    return {"mean_loss": fmean(losses), "accuracy": accuracy(model, images)}


def _worker(images: Dataset, cell: Cell, rank: int, losses: list[float]) -> WorkerTraining:
    """Return a worker that draws images from its own random stream, and appends losses to ``losses``."""
    model = torch.nn.Linear(images.image_shape[0] * images.image_shape[1], images.classes)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    own = drawn(cell["seed"], rank)

    def loss() -> torch.Tensor:
        batch, labels = images.train_batch(torch.randint(len(images.train_labels), (BATCH,), generator=own))
        found = torch.nn.functional.cross_entropy(model(batch.flatten(1)), labels)
        losses.append(found.item())
        return found

    rate = RATE / (cell["pipeline"] * cell["steps"]) ** 0.5
    return WorkerTraining(model, torch.optim.SGD(model.parameters(), lr=rate), loss)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Fit the mean excess loss as a function of the training length, and compare K > 1 with K = 1."""
    longest = max(row["steps"] for row in rows)
    accuracies = {pipeline: values(rows, "accuracy", pipeline, longest) for pipeline in pipelines(rows)}
    learned = [
        Trainings(f"K = {each}", own, accuracies[1], GOALS["digits"]) for each, own in accuracies.items()
    ]
    text = "mean loss over T on digits: slope of the logarithms"
    return [
        *rates(rows, "mean_loss", text, Published(PLACE, SLOPE), WIDEST, learned),
        Claim(
            "mean loss on digits over sqrt(K) times that with K = 1, at each length",
            behind(rows, "mean_loss", sqrt),  # the bound is 8FL sqrt(K / T), and K = 1 gives 8FL here
            at_most(1.0),
            of_each=True,
            unit="",
            published=Published(PLACE),
            rests_on=learned,
        ),
        Claim(
            "accuracy on digits lost by K = 2",
            only(fmean(accuracies[1]) - fmean(accuracies[2])),
            Bound(-ACCURACY_LOST, ACCURACY_LOST),
            published=Published("figure 4", -0.0004),
            rests_on=learned,
        ),
    ]


EXHIBIT = exhibit(
    "pipe-sgd",
    f"{PLACE}, convex",
    "how does a convex training's loss fall with T steps and K in flight?",
    cells=cells,
    run=side_by_side(measure),
    claims=claims,
    quick=LengthsOptions((1, 2), (50, 100, 200), (1, 2, 3)),
    full=LengthsOptions((1, 2, 3, 4), (100, 200, 400, 800, 1600), (1, 2, 3, 4, 5)),
    scaling="one linear layer on scikit-learn's digits replaces the last layer on CIFAR-100's features. The "
    "four workers are threads. The least loss counts as 0, because the digits are separable.",
    origins={
        "SLOPE": paper("section 3.3"),
        "WIDEST": chosen("a fifth of the published slope"),
        "ACCURACY_LOST": chosen("half a point, as for figure 4"),
        "BATCH": chosen("the batch of MNIST-MLP, 100 images on four workers"),
        "RATE": chosen("the bound leaves it open"),
        "pipelines": paper("section 3.1"),
        "steps seeds": RUN_TIME,
    },
    seconds=(20, 300),
    version=2,
)
