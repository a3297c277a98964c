"""Ranks of which the last one takes a step less, or loads nothing, with every front end: what each raises."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import DSync, Sharded
from gradwire.errors import GradwireError
from gradwire.links import Link

STEPS = 3
PLANS: dict[str, Any] = {"attach": "fp8", "backend": gradwire.Plan(algorithm="backend"), "auto": "auto"}
Make = Callable[[nn.Module, torch.optim.Optimizer, Link], Any]
Kind = str | Make
"""The name of a front end, or how another training method is made."""
METHODS: dict[str, Make] = {
    "dsync": lambda model, optimizer, link: DSync(model, optimizer, "fp8", group=link),
    "pipe": lambda model, optimizer, link: gradwire.PipeSGD(model, optimizer, "fp8", group=link),
    "sharded": lambda model, optimizer, link: Sharded(model, optimizer, "fp8", group=link),
}


def model_of() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    for number, each in enumerate(model.parameters()):
        nn.init.constant_(each, 0.1 + 0.01 * number)
    return model


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [
        (each.to_local() if hasattr(each, "to_local") else each).detach().clone()
        for each in model.parameters()
    ]


def loss_of(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(torch.linspace(0, 1, 32).view(4, 8)).square().mean()
    return loss


class Run:
    """One rank's training: ``step`` and ``compare`` are what all ranks call together."""

    def __init__(self, kind: Kind, link: Link | None = None) -> None:
        self.model = model_of()
        self.compare: Callable[..., object]
        if isinstance(kind, str) and kind in PLANS:
            plan = PLANS[kind]
            ddp = DistributedDataParallel(self.model)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.door: Any = gradwire.attach(ddp, plan, timeout_s=5, begin_timeout_s=5)
            self.called: nn.Module = ddp
            self.step, self.compare = self._backward, self.door.check_replicas
        elif kind == "fsdp":
            for each in (self.model[0], self.model[2], self.model):  # type: ignore[index]
                fully_shard(each)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.door, self.called = gradwire.attach_fsdp(self.model, "fp8", timeout_s=5), self.model
            self.step, self.compare = self._backward, self._evaluate
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            assert link is not None
            make = METHODS[kind] if isinstance(kind, str) else kind
            self.door = make(self.model, self.optimizer, link)
            serves = hasattr(self.door, "serve")
            self.step = self.door.step if serves else lambda: self.door.step(lambda: loss_of(self.model))
            self.compare = getattr(self.door, "check_replicas", self.door.synchronise)

    def _backward(self) -> None:
        self.optimizer.zero_grad()
        loss_of(self.called).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def _evaluate(self) -> None:
        with torch.no_grad():
            for _ in range(3):
                loss_of(self.model)


def failed(run: Run, act: Callable[[], object]) -> str:
    """Return what ``act`` raises; no weight has changed in the call that did."""
    while True:
        before = weights(run.model)
        try:
            act()
        except GradwireError as error:
            assert all(torch.equal(*pair) for pair in zip(before, weights(run.model), strict=True))
            return str(error)


def skipped(kind: Kind, link: Link | None = None) -> str:
    """Return this rank's error, where the last rank takes a step less and compares the replicas then."""
    run = Run(kind, link)
    rank, world = (dist.get_rank(), dist.get_world_size()) if link is None else (link.rank, link.world)
    for _ in range(STEPS - 1):
        run.step()
    text = failed(run, run.compare if rank == world - 1 else run.step)
    run.door.close()
    return text


def unloaded(kind: Kind, link: Link | None = None, state: dict[str, Any] | None = None) -> str:
    """Return this rank's error, where all but the last rank load the state of a run of some steps."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if link is None else (link.rank, link.world)
    if state is None:
        first = Run(kind, link)
        for _ in range(STEPS):
            first.step()
        if hasattr(first.door, "drain"):
            first.door.drain()
        state = copy.deepcopy(first.door.state_dict())
        first.door.close()
    run = Run(kind, link)
    if rank != world - 1:
        run.door.load_state_dict(state)
    text = failed(run, run.step)
    run.door.close()
    return text


def left(kind: str) -> str:
    """Return this rank's error, where the last rank takes a step less and closes then."""
    run = Run(kind)
    for _ in range(STEPS - 1):
        run.step()
    text = "" if dist.get_rank() == dist.get_world_size() - 1 else failed(run, run.step)
    run.door.close()
    return text
