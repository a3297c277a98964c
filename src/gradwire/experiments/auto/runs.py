"""Train tasks on the hosts of a testbed: with DDP, with its bf16 hook, and with a plan that a run chooses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.costs import ExchangeCost
from gradwire.experiments.auto import FIXED
from gradwire.experiments.auto.tasks import TASKS
from gradwire.experiments.experiment import Cell
from gradwire.experiments.hosts.ranks import Ranks
from gradwire.experiments.training.tasks import Task
from gradwire.job.on_ddp import bf16_hook
from gradwire.plan import Plan
from gradwire.training.ddp.hook import Attached

TIMEOUT_S = 120.0


def measure(
    ranks: Ranks, cells: Sequence[Cell], data_dir: str | None = None, text: str | None = None
) -> None:
    """Train each of the cells' tasks with their methods."""
    folder, file = (None if name is None else Path(name) for name in (data_dir, text))
    for cell in cells:
        task = TASKS[cell["task"]](ranks.rank, cell["seed"], folder, file)
        method = cell["method"]
        ranks.report(cell, train(task, METHODS[method] if method in METHODS else partial(_fixed, method)))


def train(task: Task, register: Callable[[DistributedDataParallel], object]) -> Cell:
    """Return the held-out loss after the task's steps, at rates that fall to zero, and what was sent."""
    model = DistributedDataParallel(task.model)
    attached = register(model)
    optimizer, steps = task.optimizer(model), task.block * task.blocks
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    ends_s, half = [time.monotonic()], ExchangeCost()
    for step in range(steps):
        if isinstance(attached, Attached) and step == steps // 2:
            half = attached.ledger.summary().total.cost
        optimizer.zero_grad()
        task.loss(model, next(task.batches)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        falling.step()
        ends_s.append(time.monotonic())
    dist.barrier()
    figures: dict[str, object] = {
        "loss": task.held_out_loss(model.module),
        "step_s": (ends_s[-1] - ends_s[0]) / steps,
        "later_s": median(end - begin for begin, end in pairwise(ends_s[steps // 2 :])),
    }
    if isinstance(attached, Attached):
        plan, cost = attached.plan, attached.ledger.summary().total.cost
        exempt = "" if not plan.codecs else f", {len(plan.codecs)} rules"
        figures |= {"ratio": cost.ratio, "plan": f"{plan.codec} {plan.algorithm}{exempt}"}
        figures |= {"raw_nbytes": cost.raw_nbytes, "wire_nbytes": cost.wire_nbytes}
        figures["later_ratio"] = (cost - half).ratio
        attached.close()
    return figures


METHODS: dict[str, Callable[[DistributedDataParallel], object]] = {
    "DDP": lambda _: None,
    "bf16 hook": bf16_hook,
    "auto": lambda model: gradwire.attach(model, "auto", timeout_s=TIMEOUT_S),
}


def _fixed(method: str, model: DistributedDataParallel) -> Attached:
    codec, _, algorithm = method.partition(FIXED)
    return gradwire.attach(model, Plan.of(codec, algorithm=algorithm, residual=False), timeout_s=TIMEOUT_S)
