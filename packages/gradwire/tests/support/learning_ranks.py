"""What the processes of the tests of learning run; a process finds it by its module."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from dataclasses import dataclass

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from support.small_tasks import SMALL_TASKS
from support.told_line import SLOW, telling, unpaced

DDP = "DDP"
"""In the place of a plan: torch's own all-reduce."""


@dataclass(frozen=True)
class Learned:
    """Held-out losses before and after a training, what this rank was warned of, and its last codec."""

    first: float
    last: float
    warnings: tuple[str, ...] = ()
    codec: str = ""


def learn(name: str, optimizer: str, scale: float, plan: gradwire.Plan | str | None) -> Learned:
    """Train with a plan and a loss that is multiplied by ``scale``.

    None is for a run that chooses: it is told of a line so slow that it compresses as much as it may.
    """
    task = SMALL_TASKS[name]
    model = task.fresh()
    first = task.judge(model)
    ddp = DistributedDataParallel(model)
    with warnings.catch_warnings(record=True), ExitStack() as told_line:
        if plan is None:
            told_line.enter_context(unpaced())
            told_line.enter_context(telling(SLOW))
        attached = None if plan == DDP else gradwire.attach(ddp, plan)
        warnings.simplefilter("always")
        updates = task.optimizer(optimizer, model, scale)
        for x, y in task.batches(dist.get_rank()):
            updates.zero_grad()
            (scale * task.loss(ddp(x), y)).backward()  # type: ignore[no-untyped-call]
            updates.step()
    told, codec = tuple[str, ...](), ""
    if attached is not None:
        told, codec = attached.ledger.summary().warnings, str(attached.plan.codec)
        attached.close()
    return Learned(first, task.judge(model), told, codec)
