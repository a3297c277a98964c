"""The strongly convex network: the excess loss falls as log T / T, with K steps under way, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradwire.experiments.claim import Claim, Explanation, Published, at_most, near
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import exhibit
from gradwire.experiments.papers.origins import RUN_TIME, chosen, origins, paper
from gradwire.experiments.papers.pipe_sgd.convex import FASTER
from gradwire.experiments.papers.pipe_sgd.lengths import Options, cells, mean, pipelines, slopes, train
from gradwire.experiments.papers.side_by_side import side_by_side

if TYPE_CHECKING:
    import torch

PLACE = "section 3.3"
DIMENSION, CONVEXITY, LARGEST, NOISE = 20, 0.5, 2.0, 1.0
"""Of the quadratic: its size, its least and largest curvature, and the noise of each gradient."""
SLOPE, WITHIN = -1.0, 0.25
LONGER = 2.0
"""How many times the excess loss of K = 1 that of a larger K may be at the end."""


def measure(_options: Options, cell: Cell) -> Mapping[str, Any]:
    """Minimise a quadratic with noisy gradients at the rate 1 / (convexity (t + t0)); return the excess."""
    import torch

    from gradwire.experiments.papers.inceptionn.training import one_thread

    with one_thread(cell["seed"]):
        curvature = torch.linspace(CONVEXITY, LARGEST, DIMENSION)
        model = torch.nn.Linear(DIMENSION, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        # The first rates are such that no curvature is overshot with K steps under way.
        begin = 4 * cell["pipeline"] * LARGEST / CONVEXITY

        def set_rate(step: int) -> None:
            optimizer.param_groups[0]["lr"] = 1 / (CONVEXITY * (step + begin))

        train(model, optimizer, cell, lambda: _loss(model.weight, curvature), set_rate)
        return {"excess": float((curvature * model.weight.detach().squeeze() ** 2).sum()) / 2}


def _loss(weight: torch.Tensor, curvature: torch.Tensor) -> torch.Tensor:
    import torch

    noise = NOISE * torch.randn(DIMENSION)
    return (curvature * weight.squeeze() ** 2 / 2 + noise * weight.squeeze()).sum()


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Fit the excess loss over the length, and compare larger K with K = 1."""
    longest = max(row["steps"] for row in rows)
    behind = {
        f"K = {pipeline}": mean(rows, "excess", pipeline, longest) / mean(rows, "excess", 1, longest)
        for pipeline in pipelines(rows)
        if pipeline > 1
    }
    return [
        Claim(
            "excess loss over T: slope of the logarithms",
            slopes(rows, "excess"),
            near(SLOPE, WITHIN),
            of_each=True,
            unit="",
            published=Published(PLACE, SLOPE),
            better=Explanation(FASTER, at_most(SLOPE + WITHIN)),
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


ORIGINS = origins(
    DIMENSION=RUN_TIME,
    CONVEXITY=chosen("a quadratic whose least loss is known"),
    LARGEST=chosen("a quadratic whose least loss is known"),
    NOISE=chosen("a quadratic whose least loss is known"),
    SLOPE=paper("section 3.3"),
    WITHIN=chosen("log T over T is not a power"),
    LONGER=chosen("K steps under way cost a constant"),
    pipelines=paper("section 3.1"),
    steps=RUN_TIME,
    seeds=RUN_TIME,
)
EXHIBIT = exhibit(
    "pipe-sgd",
    f"{PLACE}, strongly convex",
    "how does a strongly convex training's loss fall with T steps and K under way?",
    cells=cells,
    run=side_by_side(measure),
    claims=claims,
    quick=Options((1, 2, 4), (100, 400, 1600), (1, 2, 3)),
    full=Options((1, 2, 3, 4), (100, 200, 400, 800, 1600, 3200), tuple(range(1, 21))),
    scaling="a quadratic with noisy gradients in 20 dimensions, on one rank, whose least loss is "
    "known; the paper states the rate, O(log T / T), without an experiment.",
    origins=ORIGINS,
    seconds=(17, 300),
)
