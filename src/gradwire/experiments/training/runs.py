"""Train one task on the hosts of a testbed, with one method after the other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradwire.codecs import parse
from gradwire.experiments.experiment import Cell
from gradwire.experiments.hosts.ranks import MOST_STOLEN, Ranks
from gradwire.experiments.speeds import ALONE, ATTACHED, JUDGE, PIPELINED, UNJUDGED, target_of
from gradwire.experiments.training.methods import (
    Method,
    OnDDP,
    Pipelined,
    attached,
    chosen_in_the_run,
    torch_methods,
)
from gradwire.experiments.training.tasks import TASKS, Files, Task
from gradwire.machine import cores, stolen_s
from gradwire.plan import Plan
from gradwire.planner import Workload, choose_plan

CODECS = ["bf16", "errbound:rel=0.05", "errbound:rel=0.25,block=1024", "fp8", "quantize:8", "quantize:4"]
"""What the planner may choose from: codecs that suit gradients of any scale."""
NAMED = {"fp8": "ring", "ecsq:0.5": "pairwise", "quantize:4": "ring"}
"""What a user might choose, and the algorithm; the first one is the default."""
DEFAULT = next(iter(NAMED))
PLANNED = {"planned, on DDP": 1, "planned, PipeSGD": 2}
"""Methods whose plan the planner chooses, and their pipelines."""
PATIENCE = 1.5
"""A method that needs more than so many times DDP's steps has not reached the loss."""
COUNTED = 4
"""Blocks that any method trains at least, so that its step time is a median."""


def measure(
    ranks: Ranks,
    cells: Sequence[Cell],
    data_dir: str | None = None,
    images: str | None = None,
    text: str | None = None,
    device: str = "cpu",
    target: float | None = None,
) -> None:
    """Train the cells' task, from their seed, with each method; ``target`` is the loss to reach, if known."""
    files = Files(*(None if name is None else Path(name) for name in (data_dir, images, text)))

    def new_task() -> Task:
        return TASKS[cells[0]["task"]](ranks.rank, ranks.world, files, cells[0]["seed"]).on(device)

    wanted = [cell["method"] for cell in cells]
    plans = planned(ranks, new_task()) if any(name in PLANNED for name in wanted) else {}
    known = methods(plans)
    for cell in cells:
        name, task = cell["method"], new_task()
        loss = float("inf") if name in UNJUDGED else None if name == JUDGE else target
        method = known[name](task)
        run = train(ranks, method, task, loss)
        if name == JUDGE:
            target = target_of(run)
        plan = plans.get(name, method.plan)
        about = {"data": task.data, "goal": None if task.goal is None else asdict(task.goal)}
        ranks.report(cell, {"plan": "" if plan is None else in_words(plan), **about, **run})


def methods(plans: dict[str, Plan]) -> dict[str, Callable[[Task], Method]]:
    """Return every method by its name; ``plans`` are the planner's."""
    found: dict[str, Callable[[Task], Method]] = {ALONE: partial(OnDDP, exchanging=False)}
    found |= torch_methods()
    named = {
        f"{codec} {suffix}": plan
        for codec, algorithm in NAMED.items()
        for suffix, plan in (
            ("on DDP", Plan(parse(codec), algorithm, bucket_nbytes=25 << 20)),
            ("PipeSGD", Plan(parse(codec), algorithm, pipeline=2)),
        )
    }
    for name, plan in (plans | named).items():
        found[name] = partial(Pipelined if plan.pipeline > 1 else attached, plan=plan)
    stale = Plan(parse(DEFAULT), pipeline=2)
    found[f"{DEFAULT} PipeSGD, stale"] = partial(Pipelined, plan=stale, correction="none")
    found[ATTACHED] = chosen_in_the_run
    found[PIPELINED] = partial(Pipelined, plan=None)
    found["DDP again"] = OnDDP
    return found


def planned(ranks: Ranks, task: Task) -> dict[str, Plan]:
    """Return the planner's plans for this network and task; the same on all ranks."""
    forward_s, backward_s, update_s, gradient = computation(task)
    environment = ranks.environment(["identity", *CODECS], samples=[gradient])
    found: dict[str, Plan] = {}
    if environment is not None:
        counts = tuple(each.numel() for each in task.model.parameters())
        workload = Workload(counts, forward_s, backward_s, update_s)
        for name, pipeline in PLANNED.items():
            choice = choose_plan(
                workload,
                ranks.world,
                line=environment.line,
                host=environment.host,
                costs=environment.codecs,
                codecs=CODECS,
                pipelines=(pipeline,),
                shared_machine=True,
            )
            found[name] = choice.plan
    everyones: dict[str, Plan] = ranks.gather(found)[0]
    return everyones


def in_words(plan: Plan) -> str:
    """Return a plan's codec, algorithm, and segment."""
    segment = "" if plan.algorithm == "backend" else f" {plan.segment_nbytes >> 10}K"
    return f"{plan.codec} {plan.algorithm}{segment}"


def computation(task: Task) -> tuple[float, float, float, torch.Tensor]:
    """Return seconds of forward, backward and update when all hosts compute at once, and a gradient."""
    optimizer = task.optimizer(task.model)
    spent = []
    for _ in range(5):
        optimizer.zero_grad()
        dist.barrier()
        began = time.perf_counter()
        loss = task.loss(task.model, next(task.batches))
        task.wait()
        forward = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        task.wait()
        backward = time.perf_counter()
        gradient = torch.cat(
            [each.grad.flatten().cpu() for each in task.model.parameters() if each.grad is not None]
        )
        updating = time.perf_counter()
        optimizer.step()
        task.wait()
        spent.append((forward - began, backward - forward, time.perf_counter() - updating))
    forward_s, backward_s, update_s = (statistics.median(times) for times in zip(*spent[1:], strict=True))
    return forward_s, backward_s, update_s, gradient


def computed_s(task: Task) -> float:
    """Return seconds of a step on DDP besides its wait for averages, while all hosts train.

    Beside the computation, a step loads a batch, and passes DDP and the interpreter; and hosts that share
    cores begin their exchange when the last one has computed.
    """
    method, spent = attached(task, Plan(parse(DEFAULT))), []
    for _ in range(COUNTED):
        method.train(task.block)
        spent.append(method.computed_s / task.block)
    method.close()
    return statistics.median(spent[1:])


def train(ranks: Ranks, method: Method, task: Task, target: float | None) -> dict[str, Any]:
    """Train until the held-out loss is ``target``, or for as many blocks as DDP; return the curve."""
    curve: list[tuple[int, float, float]] = []
    accuracies: list[float] = []
    blocks: list[tuple[float, float]] = []
    most = task.blocks if target is None else round(PATIENCE * task.blocks)
    if target == float("inf"):
        most = COUNTED
    total_s = 0.0
    for number in range(1, most + 1):
        dist.barrier()
        began, stolen = time.perf_counter(), stolen_s()
        method.train(task.block)
        task.wait()
        spent_s = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
        share = (stolen_s() - stolen) / float(spent_s) / cores()
        dist.all_reduce(spent_s, dist.ReduceOp.MAX)
        total_s += float(spent_s)
        loss, accuracy = ranks.gather(task.judged(method.model) if ranks.rank == 0 else None)[0]
        accuracies.append(accuracy)
        curve.append((number * task.block, total_s, loss))
        blocks.append((share, float(spent_s) / task.block))
        if target is not None and loss <= target and number >= COUNTED:
            break
    method.close()
    local_s = method.local_s / (task.block * len(curve))
    later = sorted(blocks[1:])  # the first one connects, and cuts buckets anew
    calm = [seconds for share, seconds in later if share <= MOST_STOLEN] or [
        seconds for _, seconds in later[:3]
    ]
    step_s = statistics.median(calm)
    return {
        "step_s": step_s,
        "curve": curve,
        "accuracies": accuracies,
        "blocks": blocks,
        "local_s": local_s,
    }
