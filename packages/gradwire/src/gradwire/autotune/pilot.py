# ruff: noqa: D102
"""The tuner, its sampler, and its recorder as front ends call them that are not on ``GradientSync`` yet.

The move of the last one removes this module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from gradwire.autotune import recorder
from gradwire.autotune.autotuner import Autotuner
from gradwire.autotune.contract import BUCKETS, CandidateRules
from gradwire.autotune.decision import Decision
from gradwire.autotune.estimate import Estimate
from gradwire.autotune.samples import Samples
from gradwire.autotune.saved import State
from gradwire.autotune.settings import Auto
from gradwire.plan import Plan
from gradwire.sync.observe import StepCost
from gradwire.sync.residual import AUTO


class Pilot:
    """An ``Autotuner`` with the methods that it had before it was an observer."""

    def __init__(
        self,
        settings: Auto,
        rank: int,
        world: int,
        shapes: Sequence[Sequence[int]],
        timeout_s: float,
        clock: Callable[[], float] = perf_counter,
        *,
        rules: CandidateRules = BUCKETS,
        names: Collection[str],
    ) -> None:
        sizes = (torch.empty(torch.Size(each), device="meta") for each in shapes)
        trained = [(f"{number}", nn.Parameter(each)) for number, each in enumerate(sizes)]
        self.tuner = Autotuner(settings, rules, trained, clock)
        self.tuner._names = [*names]
        link = SimpleNamespace(HAS_ALL_REDUCE=True)  # the rules know already
        context: Any = SimpleNamespace(
            rank=rank, world=world, link=link, begin_timeout_s=timeout_s, ledger=None
        )
        self.tuner.connected(context)

    @property
    def decisions(self) -> list[tuple[int, Decision]]:
        return self.tuner.decisions

    @property
    def note(self) -> Callable[[int, Decision], None]:
        return self.tuner._note

    @note.setter
    def note(self, note: Callable[[int, Decision], None] | None) -> None:
        if note is not None:
            self.tuner._note = note

    @property
    def settles_at(self) -> int:
        return self.tuner.settles_at

    @settles_at.setter
    def settles_at(self, step: int) -> None:
        self.tuner.settles_at = step

    @property
    def samples(self) -> Samples | None:
        return self.tuner._samples

    def begin(self, step: int, present: Plan, ask: Callable[..., Any]) -> Plan | None:
        sync: Any = SimpleNamespace(context=SimpleNamespace(plan=present), exchange_now=ask)
        return self.tuner.begin(step, sync)

    def handed_over(self, count: int) -> None:
        self.tuner._buckets += 1
        self.tuner._times.handed_over(count)

    def end(self) -> None:
        self.tuner.end(StepCost(0))

    def took(self, wait_s: float) -> None:
        self.tuner.end(StepCost(0, wait_s))

    def state(self) -> State:
        return State.from_json(self.tuner.state()[AUTO])

    def load(self, state: State) -> Plan | None:
        self.tuner.load({AUTO: state.to_json()})
        return self.tuner.loaded_plan


class Recorder:
    """A ``recorder.Recorder`` with the methods that it had before it was an observer."""

    def __init__(self, kind: str) -> None:
        self.inner, self._wait_s = recorder.Recorder(kind), 0.0

    def scattered(self, gradient: torch.Tensor, device: torch.device) -> None:
        self.inner._device = device
        recorder.ExcerptKeeper(self.inner._excerpt, self.inner.handed_over(gradient)).before(gradient)

    def gathered(self, count: int) -> None:
        self.inner.gathered(count, 0.0)

    def waited(self, seconds: float) -> None:
        self._wait_s += seconds

    def took(self) -> None:
        self.inner.end(StepCost(0, self._wait_s))
        self._wait_s = 0.0

    def estimate(
        self, ask: Callable[..., Any], plan: Plan, timeout_s: float, rate: Any, hosts: int | None
    ) -> Estimate | None:
        context = SimpleNamespace(plan=plan, begin_timeout_s=timeout_s, check=lambda: None)
        sync: Any = SimpleNamespace(context=context, exchange_now=ask)
        return self.inner.estimate(sync, rate, hosts)
