"""What the processes of the tests of learning run; a process finds it by its module."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from support.small_tasks import SMALL_TASKS

DDP = "DDP"
"""In the place of a plan: torch's own all-reduce."""


@dataclass(frozen=True)
class Learned:
    """Held-out losses at the start and at the end of a training, and what this rank was warned of."""

    first: float
    last: float
    warnings: tuple[str, ...] = ()


def learn(name: str, optimizer: str, scale: float, plan: gradwire.Plan | str | None) -> Learned:
    """Train with a plan, None for the default, and a loss that is multiplied by ``scale``."""
    task = SMALL_TASKS[name]
    model = task.fresh()
    first = task.judge(model)
    ddp = DistributedDataParallel(model)
    attached = None if plan == DDP else gradwire.attach(ddp, plan)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        updates = task.optimizer(optimizer, model, scale)
        for x, y in task.batches(dist.get_rank()):
            updates.zero_grad()
            (scale * task.loss(ddp(x), y)).backward()  # type: ignore[no-untyped-call]
            updates.step()
    told: tuple[str, ...] = ()
    if attached is not None:
        told = attached.ledger.summary().warnings
        attached.close()
    return Learned(first, task.judge(model), told)
