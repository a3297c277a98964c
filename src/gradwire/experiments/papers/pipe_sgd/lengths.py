"""Trainings of several lengths, with several numbers of steps under way, and how their losses fall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean
from typing import TYPE_CHECKING

from gradwire.experiments.experiment import Cell, Row

if TYPE_CHECKING:
    import torch


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


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    cell: Cell,
    loss: Callable[[], torch.Tensor],
    before: Callable[[int], None] = lambda _step: None,
) -> None:
    """Take a cell's steps by the paper's Pipe-SGD on one rank, ``before(step)`` ahead of each, from 0 up."""
    from gradwire.links import loopback
    from gradwire.plan import Plan
    from gradwire.training import PipeSGD

    (link,) = loopback(1)
    method = PipeSGD(model, optimizer, Plan(pipeline=cell["pipeline"]), correction="none", group=link)
    method.synchronise()
    for step in range(cell["steps"]):
        before(step)
        method.step(loss)
    method.drain()
    method.close()
    link.close()


def mean(rows: Sequence[Row], what: str, pipeline: int, steps: int) -> float:
    """Return the mean over the seeds."""
    return fmean(row[what] for row in rows if (row["pipeline"], row["steps"]) == (pipeline, steps))


def pipelines(rows: Sequence[Row]) -> list[int]:
    """Return the numbers of steps under way, in the rows' order."""
    return [*dict.fromkeys(row["pipeline"] for row in rows)]


def slopes(rows: Sequence[Row], what: str) -> dict[str, float | None]:
    """Return, for each K, the slope of a loss's logarithm over that of the length."""
    lengths = sorted({row["steps"] for row in rows})
    return {
        f"K = {pipeline}": slope([(log(steps), log(mean(rows, what, pipeline, steps))) for steps in lengths])
        for pipeline in pipelines(rows)
    }


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line through points by least squares."""
    middle = [fmean(each) for each in zip(*points, strict=True)]
    over = sum((x - middle[0]) * (y - middle[1]) for x, y in points)
    return over / sum((x - middle[0]) ** 2 for x, _ in points)
