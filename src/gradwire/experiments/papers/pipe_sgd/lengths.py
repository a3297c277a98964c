"""Trainings of several lengths on four workers, with K steps under way, and how fast their losses fall."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from math import log
from statistics import fmean
from typing import TYPE_CHECKING

from gradwire.experiments.claim import Bound, Claim, Published, at_most, only
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.learning import Trainings, half_width

if TYPE_CHECKING:
    import torch

    from gradwire.links import Link

WORKERS = 4
"""As published."""
TIMEOUT_S = 60.0
"""The longest wait of one worker for another."""


@dataclass(frozen=True)
class Options:
    """Steps under way, lengths of trainings, and seeds."""

    pipelines: tuple[int, ...]
    steps: tuple[int, ...]
    seeds: tuple[int, ...]


def cells(options: Options) -> list[Cell]:
    """Return a cell for each K, seed, and T."""
    return [
        {"pipeline": pipeline, "steps": steps, "seed": seed}
        for pipeline in options.pipelines
        for seed in options.seeds
        for steps in options.steps
    ]


@dataclass(frozen=True)
class Worker:
    """What one worker trains: its loss in each step, and what is done ahead of a step, from 0 up."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], torch.Tensor]
    before: Callable[[int], None] = lambda _step: None


def train(pipeline: int, steps: int, worker: Callable[[int], Worker]) -> list[Worker]:
    """Train by the paper's Pipe-SGD on ``WORKERS`` ranks, which are threads; return them by rank.

    ``worker`` gets a rank. All start with the weights of the first. The first error of a rank closes all
    links and is raised.
    """
    from gradwire.links import loopback
    from gradwire.plan import Plan
    from gradwire.training import PipeSGD

    def work(link: Link) -> Worker:
        own = worker(link.rank)
        method = PipeSGD(own.model, own.optimizer, Plan(pipeline=pipeline), correction="none", group=link)
        method.synchronise()
        for step in range(steps):
            own.before(step)
            method.step(own.loss)
        method.drain()
        method.close()
        return own

    links = loopback(WORKERS, TIMEOUT_S)
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="rank") as pool:
        futures = [pool.submit(work, link) for link in links]
        try:
            for future in as_completed(futures):
                future.result()
        finally:
            for link in links:
                link.close()
    return [future.result() for future in futures]


def drawn(seed: int, rank: int) -> torch.Generator:
    """Return the random numbers of one worker."""
    import torch

    return torch.Generator().manual_seed(1000 * seed + rank)


def values(rows: Sequence[Row], what: str, pipeline: int, steps: int) -> list[float]:
    """Return a figure of each seed."""
    return [row[what] for row in rows if (row["pipeline"], row["steps"]) == (pipeline, steps)]


def pipelines(rows: Sequence[Row]) -> list[int]:
    """Return the numbers of steps under way, from few to many."""
    return sorted({row["pipeline"] for row in rows})


def behind(rows: Sequence[Row], what: str, factor: Callable[[int], float]) -> Mapping[str, float | None]:
    """Return, for each length and K beyond 1, a figure over ``factor(K)`` times that with K = 1."""
    lengths = sorted({row["steps"] for row in rows})
    means = {
        (pipeline, steps): fmean(values(rows, what, pipeline, steps))
        for pipeline in pipelines(rows)
        for steps in lengths
    }
    return {
        f"K = {pipeline}, T = {steps}": mean / (factor(pipeline) * means[1, steps])
        for (pipeline, steps), mean in means.items()
        if pipeline > 1
    }


def slopes(rows: Sequence[Row], what: str, pipeline: int) -> list[float]:
    """Return, for each seed, the slope of a figure's logarithm over that of the length."""
    own = [row for row in rows if row["pipeline"] == pipeline]
    return [
        slope([(log(row["steps"]), log(row[what])) for row in own if row["seed"] == seed])
        for seed in dict.fromkeys(row["seed"] for row in own)
    ]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line through points by least squares."""
    middle = [fmean(each) for each in zip(*points, strict=True)]
    over = sum((x - middle[0]) * (y - middle[1]) for x, y in points)
    return over / sum((x - middle[0]) ** 2 for x, _ in points)


def rates(
    rows: Sequence[Row],
    what: str,
    text: str,
    published: Published,
    widest: float,
    rests_on: Sequence[Trainings] = (),
) -> Iterator[Claim]:
    """Yield, for each K, that the slope is the published one within its own 95 % interval over the seeds.

    Scatter wins nothing: where half of an interval is wider than ``widest``, the slope has no tolerance. Nor
    does a steeper slope: short trainings that lose much make one, too. A last claim says that no interval is
    wider.
    """
    around: dict[str, float | None] = {}
    assert isinstance(published.value, float)
    for pipeline in pipelines(rows):
        found = slopes(rows, what, pipeline)
        around[f"K = {pipeline}"] = own = half_width(found)
        tolerance = own if own <= widest else 0.0
        yield Claim(
            f"{text} with K = {pipeline}, over {len(found)} seeds",
            only(fmean(found)),
            Bound(published.value - tolerance, published.value + tolerance),
            unit="",
            published=published,
            rests_on=rests_on,
        )
    yield Claim(
        f"{text}: half of its 95 % interval",
        around,
        at_most(widest),
        of_each=True,
        unit="",
        rests_on=rests_on,
    )
