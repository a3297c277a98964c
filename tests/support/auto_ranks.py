"""What the processes of the tests of an automatic choice run."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.auto.pilot import WARM_UP
from support.ddp_ranks import SMALL_BUCKETS, loss_of, make_model, weights

STEPS = WARM_UP + 3


def chosen(path: str) -> dict[str, Any]:
    """Train with a choice of its own; then replay what was decided as fixed plans."""
    settings = gradwire.Auto(path=path)
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    with gradwire.attach(model, settings) as attached:
        _train(model, range(1, STEPS + 1))
        decisions = attached.decisions
        plans, shown = [attached.plan], repr(attached)
    again = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    with gradwire.attach(again, settings) as attached:  # starts with the plan that was saved
        _train(again, range(1, 3))
        plans.append(attached.plan)
    return {
        "weights": weights(model),
        "again": weights(again),
        "decisions": [(step, each.to_json()) for step, each in decisions],
        "plans": plans,
        "repr": shown,
    }


def differing(rank_with: int) -> str:
    """Ask for an automatic choice on one rank alone; return what that gave."""
    rank = torch.distributed.get_rank()
    model = DistributedDataParallel(make_model())
    try:
        gradwire.attach(model, "auto" if rank == rank_with else "fp8")
    except gradwire.errors.AttachError as error:
        return str(error)
    return ""


def _train(model: DistributedDataParallel, steps: range) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
