"""Ranks whose tuner chooses their plans, without a model, and with times of which a test decides."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import nn

from gradwire import Auto, Exchange, Link, Plan
from gradwire.autotune.autotuner import Autotuner
from gradwire.autotune.decision import State
from gradwire.autotune.settings import BUCKETS
from gradwire.machine import ThreadSeconds
from gradwire.sync.bucket.observe import StepCost
from gradwire.sync.context import SyncContext, SyncOptions
from gradwire.sync.layout import Layout
from support.bucket_requests import request_of

T = TypeVar("T")
COUNTS, BIAS = (5000, 3000), 30
NAMES = (["0.weight", "0.bias"], ["1.weight", "1.bias"])
SHAPES = [[(10, (count - BIAS) // 10), (BIAS,)] for count in COUNTS]


class Run:
    """One rank's run: a loop like that of ``GradientSync``, with a line of which a test decides."""

    def __init__(self, link: Link, settings: Auto, group: Any = None) -> None:
        self.exchange = Exchange(link, settings.first_plan)
        self.context = SyncContext(self.exchange, SyncOptions(begin_timeout_s=10.0), group=group)
        self.now, self.exposed_s = 0.0, 0.1
        self.no_lanes = ""  # the reason, if lanes can't be connected
        self.small = self.faint = self.weak = self.even = False
        self.lit, self.buckets = slice(None), slice(None)
        self.exposed_by: dict[str, float] = {}
        parameters = [
            (name, nn.Parameter(torch.zeros(shape)))
            for names, shapes in zip(NAMES, SHAPES, strict=True)
            for name, shape in zip(names, shapes, strict=True)
        ]
        self.tick_s = 0.0  # of each look at the clock
        self.tuner = Autotuner(
            settings, BUCKETS, parameters, self._clock, spent=lambda: ThreadSeconds(0.0, 0.0)
        )
        self.tuner.connected(self.context)
        self.plans: list[Plan] = []
        self.generator = torch.Generator().manual_seed(link.rank)

    def _clock(self) -> float:
        self.now += self.tick_s
        return self.now

    def exchange_now(self, what: str, call: Callable[[Exchange], T]) -> T:
        assert what
        return call(self.exchange)

    def connect_lanes(self, number: int) -> str:
        return self.no_lanes if number > 1 else ""

    @property
    def state(self) -> State:
        return State.from_json(self.tuner.state()["auto"])

    def load(self, state: State) -> None:
        self.tuner.load({"auto": state.to_json()})

    def step(self, number: int, scale: float = 1.0) -> None:
        chosen = self.tuner.begin(number, self)
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
            self.now += 0.05
            self._exchange(index, values)
        self.now += self.exposed_by.get(self.exchange.plan.algorithm, self.exposed_s)
        self.tuner.end(StepCost(number))

    def _exchange(self, index: int, values: torch.Tensor) -> None:
        names, counts = NAMES[index], (len(values) - BIAS, BIAS)
        request = request_of(self.exchange, names, counts)
        layout = Layout(tuple(names), counts, ("", ""))
        work: Any = SimpleNamespace(tensor=values, layout=layout, request=request, is_bypassed=False)
        observer = self.tuner.bucket(work)
        observer.before(values)
        self.exchange.run(values, request)
        observer.after(values, self.exchange)


def train(link: Link, settings: Auto, steps: int, scales: dict[int, float] | None = None) -> Run:
    run = Run(link, settings)
    for number in range(1, steps + 1):
        run.step(number, (scales or {}).get(number, 1.0))
    return run
