"""Processes of the tests of retried steps: forward passes that raise, and the same step once more."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import gradwire
from support import ddp_ranks, sharded
from support.told_line import configure, tell_line, tell_times

STEPS = 50


class Failing(nn.Module):
    """Raises in its forward pass while ``fails``, as one that is out of memory."""

    fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise MemoryError
        return x


def ddp(failing: Collection[int]) -> dict[str, Any]:
    """Train by ``attach``; on the ranks in ``failing``, take each step at the second attempt."""
    layers, last = ddp_ranks.make_model(), Failing()
    model = DistributedDataParallel(nn.Sequential(*layers, last), **ddp_ranks.SMALL_BUCKETS)
    return _train(model, last, gradwire.attach, ddp_ranks.loss_of, failing)


def fsdp(failing: Collection[int]) -> dict[str, Any]:
    """Train by ``attach_fsdp`` in the same way; no module's weights are gathered by ranks that raise."""
    model, first = sharded.make_model(), Failing()
    sharded.shard(model, sharded.Case())

    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        x, y = sharded.batch(dist.get_rank(), step)
        return nn.functional.mse_loss(model(first(x)), y)

    return _train(model, first, gradwire.attach_fsdp, loss_of, failing)


def _train(
    model: nn.Module,
    part: Failing,
    attach: Callable[..., Any],
    loss_of: Callable[..., torch.Tensor],
    failing: Collection[int],
) -> dict[str, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.MonkeyPatch.context() as told:
        tell_line(told)
        tell_times(told)
        configure(told, most_trials=3)
        with attach(model, "auto") as attached:
            for step in range(STEPS):
                for fails in (True, False) if dist.get_rank() in failing else (False,):
                    part.fails = fails
                    try:
                        loss_of(model, step).backward()  # type: ignore[no-untyped-call]
                    except MemoryError:
                        continue
                    optimizer.step()
                    optimizer.zero_grad()
            decisions = [(step, decision.plan) for step, decision in attached.decisions]
    weights = [each.to_local() if isinstance(each, DTensor) else each for each in model.parameters()]
    return {"decisions": decisions, "weights": [each.detach().clone() for each in weights]}
