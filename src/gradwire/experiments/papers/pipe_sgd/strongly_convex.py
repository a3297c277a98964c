"""The strongly convex network: the excess loss falls as log T / T, with K steps under way, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gradwire.experiments.claim import Bound, Claim, Published, at_most
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit
from gradwire.experiments.papers.pipe_sgd.convex import slope

if TYPE_CHECKING:
    import torch

PLACE = "section 3.3"
DIMENSION, CONVEXITY, LARGEST, NOISE = 20, 0.5, 2.0, 1.0
"""Of the quadratic: its size, its least and largest curvature, and the noise of each gradient."""
SLOPE, WITHIN = -1.0, 0.25
LONGER = 2.0
"""How many times the excess loss of K = 1 that of a larger K may be at the end."""


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
    """Minimise a quadratic with noisy gradients at the rate 1 / (convexity (t + t0)); return the excess."""
    import torch

    from gradwire.experiments.papers.inceptionn.training import one_thread
    from gradwire.links import loopback
    from gradwire.plan import Plan
    from gradwire.training import PipeSGD

    with one_thread(cell["seed"]):
        curvature = torch.linspace(CONVEXITY, LARGEST, DIMENSION)
        model = torch.nn.Linear(DIMENSION, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        # The first rates are such that no curvature is overshot with K steps under way.
        begin = 4 * cell["pipeline"] * LARGEST / CONVEXITY
        (link,) = loopback(1)
        method = PipeSGD(model, optimizer, Plan(pipeline=cell["pipeline"]), correction="none", group=link)
        method.synchronise()
        for step in range(cell["steps"]):
            optimizer.param_groups[0]["lr"] = 1 / (CONVEXITY * (step + begin))
            method.step(lambda: _loss(model.weight, curvature))
        method.drain()
        method.close()
        link.close()
        return {"excess": float((curvature * model.weight.detach().squeeze() ** 2).sum()) / 2}


def _loss(weight: torch.Tensor, curvature: torch.Tensor) -> torch.Tensor:
    import torch

    noise = NOISE * torch.randn(DIMENSION)
    return (curvature * weight.squeeze() ** 2 / 2 + noise * weight.squeeze()).sum()


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Fit the excess loss over the length, and compare larger K with K = 1."""
    pipelines = [*dict.fromkeys(row["pipeline"] for row in rows)]
    lengths = sorted({row["steps"] for row in rows})

    def mean(pipeline: int, steps: int) -> float:
        return fmean(row["excess"] for row in rows if (row["pipeline"], row["steps"]) == (pipeline, steps))

    slopes = {
        f"K = {pipeline}": slope([(log(steps), log(mean(pipeline, steps))) for steps in lengths])
        for pipeline in pipelines
    }
    longest = lengths[-1]
    behind = {
        f"K = {pipeline}": mean(pipeline, longest) / mean(1, longest)
        for pipeline in pipelines
        if pipeline > 1
    }
    return [
        Claim(
            "excess loss over T: slope of the logarithms",
            slopes,
            Bound(most=SLOPE + WITHIN),
            of_each=True,
            unit="",
            published=Published(PLACE, SLOPE),
        ),
        Claim(
            "excess loss after T steps over that with K = 1",
            behind,
            at_most(LONGER),
            of_each=True,
            unit="x",
            published=Published(PLACE),
        ),
    ]


EXHIBIT = exhibit(
    "pipe-sgd",
    f"{PLACE}, strongly convex",
    "how does a strongly convex training's loss fall with T steps and K under way?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options((1, 2, 4), (100, 400, 1600), (1, 2, 3)),
    full=Options((1, 2, 3, 4), (100, 200, 400, 800, 1600, 3200), tuple(range(1, 21))),
    scaling="a quadratic with noisy gradients in 20 dimensions, on one rank, whose least loss is "
    "known; the paper states the rate, O(log T / T), without an experiment.",
    seconds=(12, 300),
)
