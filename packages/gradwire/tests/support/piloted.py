"""Ranks whose pilot chooses their plans, without a model, and with times of which a test decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from gradwire import Auto, Exchange, Link, Plan
from gradwire.autotune.autotuner import Autotuner
from gradwire.autotune.contract import BUCKETS
from gradwire.autotune.samples import SampledBucket
from support.bucket_requests import request_of

T = TypeVar("T")
COUNTS, BIAS = (5000, 3000), 30
NAMES = (["0.weight", "0.bias"], ["1.weight", "1.bias"])


class Run:
    """One rank's run: a loop like that of DDP's hook, with a line of which a test decides."""

    def __init__(self, link: Link, settings: Auto) -> None:
        self.exchange = Exchange(link, settings.first_plan)
        self.now, self.exposed_s = 0.0, 0.1
        self.small = self.faint = self.weak = self.even = False
        self.lit, self.buckets = slice(None), slice(None)
        self.exposed_by: dict[str, float] = {}
        shapes = [[each] for each in COUNTS]
        rules, names = BUCKETS.over(link), [name for bucket in NAMES for name in bucket]
        options: dict[str, Any] = {"rules": rules, "names": names}
        self.pilot = Autotuner(settings, link.rank, link.world, shapes, 10.0, lambda: self.now, **options)
        self.plans: list[Plan] = []
        self.generator = torch.Generator().manual_seed(link.rank)

    def ask(self, what: str, work: Callable[[Exchange], T]) -> T:
        assert what
        return work(self.exchange)

    def step(self, number: int, scale: float = 1.0) -> None:
        chosen = self.pilot.begin(number, self.exchange.plan, self.ask)
        if chosen is not None:
            self.exchange.follow(chosen)
        self.plans.append(self.exchange.plan)
        for index, count in [*enumerate(COUNTS)][self.buckets]:
            values = torch.randn(count, generator=self.generator) * scale
            if self.even:
                values = values.sign() * scale
            if self.faint:  # all but what a short sample sees
                values[60:] *= 1e-4
            columns = (count - BIAS) // 10
            lit = torch.full((10, columns), 1e-4)
            lit[:, self.lit] = 1.0  # features that this rank's examples have
            values[:-BIAS] *= lit.flatten()
            if self.weak and index == 1:
                values *= 1e-3
            if self.small:  # they share a block with weights that are much larger
                values[-BIAS:] *= 1e-4
            reducer = self.exchange.run
            request = request_of(self.exchange, NAMES[index], [count - BIAS, BIAS])
            self.now += 0.05
            self.pilot.handed_over(count)
            if self.pilot.samples is not None:
                names, shapes = NAMES[index], [(10, columns), (BIAS,)]
                drawn = self.pilot.samples.drawn == index
                reducer = SampledBucket(reducer, self.exchange, self.pilot.samples, names, shapes, drawn).run
            reducer(values, request)
        self.now += self.exposed_by.get(self.exchange.plan.algorithm, self.exposed_s)
        self.pilot.end()


def train(link: Link, settings: Auto, steps: int, scales: dict[int, float] | None = None) -> Run:
    run = Run(link, settings)
    for number in range(1, steps + 1):
        run.step(number, (scales or {}).get(number, 1.0))
    return run
