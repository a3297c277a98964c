"""A network with a strongly convex loss: excess loss falls as log T / T, even with K steps in flight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from statistics import fmean

from gradwire.deferred import torch
from gradwire_lab.experiments.claim import Claim, Published, at_most
from gradwire_lab.experiments.experiment import Cell, Row
from gradwire_lab.experiments.papers.exhibit import RUN_TIME, chosen, exhibit, groups_side_by_side, paper
from gradwire_lab.experiments.papers.pipe_sgd.convex import WIDEST
from gradwire_lab.experiments.papers.pipe_sgd.lengths import (
    WORKERS,
    LengthsOptions,
    WorkerTraining,
    behind,
    cells,
    drawn,
    rates,
    slope,
    train,
)

PLACE = "section 3.3"
DIMENSION, CONVEXITY, LARGEST, NOISE = 20, 0.5, 2.0, 1.0
"""The quadratic's dimension, its least and largest curvature, and the noise of workers' gradients."""


def measure(_options: LengthsOptions, cells: Sequence[Cell]) -> Iterator[Row]:
    """Minimize a noisy quadratic at the rate 1 / (convexity (t + t0)), once for all lengths."""
    excess: list[list[float]] = [[] for _ in range(WORKERS)]
    first = cells[0]
    train(
        first["pipeline"],
        max(cell["steps"] for cell in cells),
        lambda rank: _worker(first["pipeline"], drawn(first["seed"], rank), excess[rank]),
    )
    for cell in cells:
        yield {**cell, "excess": fmean(fmean(own[: cell["steps"]]) for own in excess)}


def _worker(pipeline: int, noise: torch.Generator, excess: list[float]) -> WorkerTraining:
    """Return a worker that appends each step's excess loss to ``excess``."""
    curvature = torch.linspace(CONVEXITY, LARGEST, DIMENSION)
    model = torch.nn.Linear(DIMENSION, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    # The first rates are small enough not to overshoot any curvature with K steps in flight.
    begin = 4 * pipeline * LARGEST / CONVEXITY

    def set_rate(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 1 / (CONVEXITY * (step + begin))

    def loss() -> torch.Tensor:
        weight = model.weight.squeeze()
        found = (curvature * weight**2).sum() / 2
        excess.append(found.item())
        return found + NOISE * torch.randn(DIMENSION, generator=noise) @ weight

    return WorkerTraining(model, optimizer, loss, set_rate)


def published_slope(lengths: Sequence[int]) -> float:
    """Return the slope of log(log T / T) over log T at these lengths."""
    return slope([(log(length), log(log(length) / length)) for length in lengths])


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Fit the mean excess loss as a function of the training length, and compare K > 1 with K = 1."""
    lengths = sorted({row["steps"] for row in rows})
    published = Published(PLACE, published_slope(lengths))
    # Proofs about stale gradients have a factor of K at most; the paper states none.
    later, wanted = behind(rows, "excess", float), at_most(1.0)
    text, place = "mean excess loss over K times that with K = 1, at each length", Published(PLACE)
    return [
        *rates(rows, "excess", "mean excess loss over T: slope of the logarithms", published, WIDEST),
        Claim(text, later, wanted, of_each=True, unit="", published=place),
    ]


EXHIBIT = exhibit(
    "pipe-sgd",
    f"{PLACE}, strongly convex",
    "how does a strongly convex training's loss fall with T steps and K in flight?",
    cells=cells,
    run=groups_side_by_side(measure, ("pipeline", "seed")),
    claims=claims,
    quick=LengthsOptions((1, 2), (50, 100, 200, 400), (1, 2, 3)),
    full=LengthsOptions((1, 2, 3, 4), (100, 200, 400, 800, 1600), tuple(range(1, 9))),
    scaling="a quadratic in 20 dimensions whose least loss is known, with noisy gradients, on four workers "
    "that are threads. The paper states the rate, O(log T / T), without an experiment. The published slope "
    "is the slope of log T / T over the same lengths.",
    origins={
        "DIMENSION steps seeds": RUN_TIME,
        "CONVEXITY LARGEST NOISE": chosen("a quadratic whose least loss is known"),
        "pipelines": paper("section 3.1"),
    },
    seconds=(20, 300),
    version=2,
)
