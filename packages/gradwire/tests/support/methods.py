"""The core's training methods in one form, for tests that hold for every method; the lab adds its servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from gradwire import DSync, PipeSGD, Sharded
from gradwire.links import Link
from gradwire.plan import Plan


@dataclass(frozen=True)
class TrainingMethod:
    """How a rank makes a method of its model and optimizer, and with which plan."""

    make: Callable[[nn.Module, torch.optim.Optimizer, Plan, Link], Any]
    plan: Plan = field(default_factory=Plan)


def _pipe_sgd(correction: str) -> TrainingMethod:
    def make(model: nn.Module, optimizer: torch.optim.Optimizer, plan: Plan, link: Link) -> PipeSGD:
        plan = replace(plan, pipeline=2)
        return PipeSGD(model, optimizer, plan, warmup_steps=0, correction=correction, group=link)

    return TrainingMethod(make)


METHODS = {
    "d-sync": TrainingMethod(lambda model, optimizer, plan, link: DSync(model, optimizer, plan, group=link)),
    "none": _pipe_sgd("none"),
    "eager": _pipe_sgd("eager"),
    "sharded": TrainingMethod(
        lambda model, optimizer, plan, link: Sharded(model, optimizer, plan, replicas="fp32", group=link)
    ),
}
