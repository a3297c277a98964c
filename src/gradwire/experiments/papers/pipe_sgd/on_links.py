"""Trainings as PS-Sync, D-Sync, and Pipe-SGD, over paced links."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from gradwire.experiments.papers.threads import on_threads

if TYPE_CHECKING:
    import torch

    from gradwire.links import Link

TRUNCATED, QUANTIZED = "truncate:16", "quantize:8"


class Way(NamedTuple):
    """A way to train: its collective, its codec, and how many steps are under way."""

    algorithm: str
    codec: str
    pipeline: int


WAYS = {
    "PS-Sync": Way("star", "identity", 1),
    "D-Sync": Way("ring", "identity", 1),
    "D-Sync+T": Way("ring", TRUNCATED, 1),
    "D-Sync+Q": Way("ring", QUANTIZED, 1),
    "Pipe-SGD": Way("ring", "identity", 2),
    "Pipe-SGD+T": Way("ring", TRUNCATED, 2),
    "Pipe-SGD+Q": Way("ring", QUANTIZED, 2),
}
"""As the paper names them."""


@dataclass(frozen=True)
class Task:
    """What one rank trains, from the same weights on all: its loss in a step, and the accuracy at the end.

    From step ``falls_at`` on, the learning rate is a tenth.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[int], torch.Tensor]
    accuracy: Callable[[], float]
    falls_at: int | None = None


class Found(NamedTuple):
    """The accuracy of the first worker at the end, and the median seconds of a step of the slowest rank."""

    accuracy: float
    step_s: float


@dataclass(frozen=True)
class Trainee:
    """What each rank does: ``steps`` steps of ``task(rank)``."""

    way: Way
    task: Callable[[int], Task]
    steps: int
    warmup_steps: int = 0

    def __call__(self, link: Link) -> Found:
        """Train as one of the ranks. Raises ``ExchangeError``."""
        from gradwire.codecs import parse
        from gradwire.plan import Plan
        from gradwire.training import PipeSGD

        own, way = self.task(link.rank), self.way
        plan = Plan(parse(way.codec), way.algorithm, 1 << 24, pipeline=way.pipeline)
        method = PipeSGD(
            own.model,
            own.optimizer,
            plan,
            warmup_steps=self.warmup_steps,
            correction="none",
            group=link,
        )
        method.synchronise()
        seconds = []
        for step in range(self.steps):
            if step == own.falls_at:
                for group in own.optimizer.param_groups:
                    group["lr"] /= 10
            began = time.perf_counter()
            method.step(lambda step=step: own.loss(step))  # type: ignore[misc]
            seconds.append(time.perf_counter() - began)
        method.drain()
        method.close()
        settled = min(self.warmup_steps + way.pipeline, self.steps - 1)
        return Found(own.accuracy(), median(seconds[settled:]))


def train(
    world: int,
    trainee: Trainee,
    *,
    on: Callable[..., list[Found]] = on_threads,
    nbytes_per_s: float | None = None,
    latency_s: float = 0.0,
) -> Found:
    """Train with ``world`` ranks ``on`` threads or processes. Raises what these raise."""
    ranks = on(world, trainee, nbytes_per_s, latency_s)
    return Found(ranks[-1].accuracy, max(rank.step_s for rank in ranks))
