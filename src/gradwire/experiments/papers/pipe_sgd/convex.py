"""The convex network: the excess loss over T steps with K under way, and the bound 8 F L sqrt(K / T)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gradwire.experiments.claim import Claim, Published, at_most
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit

if TYPE_CHECKING:
    import torch

PLACE = "section 3.3"
SLOPE = -0.5
"""Of the logarithm of the excess loss over that of T: the bound falls as sqrt(1 / T)."""
ACCURACY_LOST = 0.01
"""Published: .4793 with one step under way, and .4797 with two and truncation."""
BATCH = 25


@dataclass(frozen=True)
class Options:
    """Steps under way, lengths of trainings, and seeds."""

    pipelines: tuple[int, ...]
    steps: tuple[int, ...]
    seeds: tuple[int, ...]


def cells(options: Options) -> list[Cell]:
    """Return a cell for each K, T, and seed."""
    return [
        {"pipeline": pipeline, "steps": steps, "seed": seed}
        for pipeline in options.pipelines
        for steps in options.steps
        for seed in options.seeds
    ]


def measure(_options: Options, cell: Cell) -> Mapping[str, Any]:
    """Train the last layer with a rate of sqrt(1 / (K T)), as the bound wants it; keep the mean loss."""
    import torch
    from torch import nn

    from gradwire.experiments.papers.inceptionn.training import one_thread
    from gradwire.job.data import load
    from gradwire.links import loopback
    from gradwire.plan import Plan
    from gradwire.training import PipeSGD

    images = load("digits")
    with one_thread(cell["seed"]):
        model = nn.Linear(images.image_shape[0] * images.image_shape[1], images.classes)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        rate = RATE / (cell["pipeline"] * cell["steps"]) ** 0.5
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        (link,) = loopback(1)
        method = PipeSGD(model, optimizer, Plan(pipeline=cell["pipeline"]), correction="none", group=link)
        method.synchronise()
        losses: list[float] = []
        for _ in range(cell["steps"]):
            method.step(lambda: _loss(model, images.train_batch(_drawn(images)), losses))
        method.drain()
        method.close()
        link.close()
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
    pipelines = [*dict.fromkeys(row["pipeline"] for row in rows)]
    lengths = sorted({row["steps"] for row in rows})

    def mean(what: str, pipeline: int, steps: int) -> float:
        return fmean(row[what] for row in rows if (row["pipeline"], row["steps"]) == (pipeline, steps))

    slopes = {
        f"K = {pipeline}": slope([(log(steps), log(mean("mean_loss", pipeline, steps))) for steps in lengths])
        for pipeline in pipelines
    }
    longest = lengths[-1]
    first = [mean("mean_loss", 1, steps) for steps in (lengths[0], longest)]
    bounded = {}
    for pipeline in pipelines[1:]:
        # The bound's constant is fitted with K = 1; K steps under way may cost sqrt(K) times as much.
        bounded[f"K = {pipeline}"] = mean("mean_loss", pipeline, longest) / (pipeline**0.5 * first[1])
    lost = mean("accuracy", 1, longest) - mean("accuracy", 2, longest)
    return [
        Claim(
            "mean loss over T: slope of the logarithms",
            slopes,
            at_most(0.8 * SLOPE),
            of_each=True,
            unit="",
            published=Published(PLACE, SLOPE),
        ),
        Claim(
            "mean loss over sqrt(K) times that with K = 1",
            bounded,
            at_most(1.0),
            of_each=True,
            unit="",
            published=Published(PLACE, 1.0),
        ),
        Claim(
            "accuracy lost by K = 2",
            {"": lost},
            at_most(ACCURACY_LOST),
            published=Published("figure 4", -0.0004),
        ),
    ]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line through points by least squares."""
    middle = [fmean(each) for each in zip(*points, strict=True)]
    over = sum((x - middle[0]) * (y - middle[1]) for x, y in points)
    return over / sum((x - middle[0]) ** 2 for x, _ in points)


EXHIBIT = exhibit(
    "pipe-sgd",
    f"{PLACE}, convex",
    "how does a convex training's loss fall with T steps and K under way?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options((1, 2, 4), (100, 400, 1600), (1, 2)),
    full=Options((1, 2, 3, 4), (100, 200, 400, 800, 1600, 3200), (1, 2, 3, 4, 5)),
    scaling="one linear layer on scikit-learn's digits in the place of the last layer on CIFAR-100's "
    "features, on one rank. The least loss counts as 0, as the layer comes close to that.",
    seconds=(15, 240),
)
