"""Training runs of several lengths on four workers, with K steps in flight, and their losses' slopes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from math import log
from statistics import fmean
from typing import TYPE_CHECKING

from gradwire.deferred import torch
from gradwire.timing.interval import half_width
from gradwire_lab.experiments.claim import Bound, Claim, Published, at_most, only
from gradwire_lab.experiments.experiment import Cell, Row, cells_of, grouped, select
from gradwire_lab.experiments.learning import Trainings

if TYPE_CHECKING:
    from gradwire.links import Link

WORKERS = 4
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class LengthsOptions:
    """The options: pipeline depths, lengths of training runs, and seeds."""

    pipelines: tuple[int, ...]
    steps: tuple[int, ...]
    seeds: tuple[int, ...]


def cells(options: LengthsOptions) -> list[Cell]:
    """Return a cell for each K, seed, and T."""
    return cells_of(pipeline=options.pipelines, seed=options.seeds, steps=options.steps)


@dataclass(frozen=True)
class WorkerTraining:
    """One worker's training: the loss of each step, and a function to call before each step.

    Steps are numbered from 0.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], torch.Tensor]
    before: Callable[[int], None] = lambda _step: None


def train(pipeline: int, steps: int, worker: Callable[[int], WorkerTraining]) -> list[WorkerTraining]:
    """Train with the paper's Pipe-SGD on ``WORKERS`` ranks, in threads, and return the workers by rank.

    ``worker`` is called with a rank. All ranks start from rank 0's weights. The first error of a rank closes
    all links and is raised.
    """
    from gradwire.links import loopback
    from gradwire.pipe.pipe_sgd import PipeSGD
    from gradwire.plan import Plan

    def work(link: Link) -> WorkerTraining:
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
    """Return the random generator of one worker."""
    return torch.Generator().manual_seed(1000 * seed + rank)


def values(rows: Sequence[Row], what: str, pipeline: int, steps: int) -> list[float]:
    """Return the figure ``what`` of each seed's row."""
    return [row[what] for row in select(rows, pipeline=pipeline, steps=steps)]


def pipelines(rows: Sequence[Row]) -> list[int]:
    """Return the pipeline depths in ascending order."""
    return sorted({row["pipeline"] for row in rows})


def behind(rows: Sequence[Row], what: str, factor: Callable[[int], float]) -> Mapping[str, float | None]:
    """Return, for each length and K > 1, the ratio of a figure to ``factor(K)`` times the figure at K = 1."""
    means = {
        (pipeline, steps): fmean(values(rows, what, pipeline, steps))
        for pipeline in pipelines(rows)
        for steps in sorted({row["steps"] for row in rows})
    }
    return {
        f"K = {pipeline}, T = {steps}": mean / (factor(pipeline) * means[1, steps])
        for (pipeline, steps), mean in means.items()
        if pipeline > 1
    }


def slopes(rows: Sequence[Row], what: str, pipeline: int) -> list[float]:
    """Return, for each seed, the slope of a figure's logarithm over the logarithm of the length."""
    by_seed = grouped(select(rows, pipeline=pipeline), "seed")
    return [slope([(log(row["steps"]), log(row[what])) for row in own]) for own in by_seed.values()]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through points."""
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
    """Yield, for each K, the claim that the slope equals the published slope within a 95 % interval.

    A half-interval beyond ``widest`` gives no tolerance, so that variance doesn't help; the last claim is
    that none exceeds it. A steeper slope violates a claim, too: short runs with large losses also have one.
    """
    around: dict[str, float | None] = {}
    assert isinstance(published.value, float)
    for pipeline in pipelines(rows):
        found = slopes(rows, what, pipeline)
        around[f"K = {pipeline}"] = own = half_width(found)
        tolerance = own if own <= widest else 0.0
        wanted = Bound(published.value - tolerance, published.value + tolerance)
        slope_text = f"{text} with K = {pipeline}, over {len(found)} seeds"
        yield Claim(slope_text, only(fmean(found)), wanted, unit="", published=published, rests_on=rests_on)
    text = f"{text}: half of its 95 % interval"
    yield Claim(text, around, at_most(widest), of_each=True, unit="", rests_on=rests_on)
