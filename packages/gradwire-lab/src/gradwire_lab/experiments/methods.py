"""Train one task on the hosts of a testbed with one method after another."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.codecs import parse
from gradwire.machine import cores, stolen_s
from gradwire.plan import Plan
from gradwire.planner import choose_plan
from gradwire_lab.experiments.experiment import Cell
from gradwire_lab.experiments.hosts.ranks import Ranks, undisturbed
from gradwire_lab.experiments.hosts.training import flat
from gradwire_lab.experiments.speeds import ALONE, ATTACHED, JUDGE, PIPELINED, UNJUDGED, target_of
from gradwire_lab.experiments.tasks import TASKS, Files, TrainingTask
from gradwire_lab.job import on_ddp

# The training methods under comparison: torch's hooks, and gradwire's plans.

TIMEOUT_S = 120.0
_ONE_BUCKET_MB = 1 << 20


class ComparedMethod(ABC):
    """A training method that is compared with other methods on one task, from the task's initial weights."""

    model: torch.nn.Module
    local_s: float = 0.0
    """Seconds of the eager pipeline's local updates so far."""
    plan: Plan | None = None
    """The plan that the run has chosen, if any."""

    @abstractmethod
    def train(self, steps: int) -> None:
        """Train for ``steps`` more steps, and apply all their updates before returning."""

    @abstractmethod
    def close(self) -> None:
        """Close the method's connections."""


class ComparedOnDDP(ComparedMethod):
    """A method on DDP, with or without a hook; ``computed_s`` is the last block's time without waits."""

    def __init__(
        self,
        task: TrainingTask,
        hook: Callable[[DistributedDataParallel], object] | None = None,
        bucket_mb: float | None = None,
        *,
        exchanging: bool = True,
    ) -> None:
        self.model, self._task, self._exchanging = task.model, task, exchanging
        self._own = on_ddp.OnDDP(task.model, task.optimizer(task.model), hook, bucket_mb=bucket_mb)

    def train(self, steps: int) -> None:
        """Train for ``steps`` more steps."""
        self.computed_s = 0.0
        with nullcontext() if self._exchanging else self._own.ddp.no_sync():
            for _ in range(steps):
                began = perf_counter()
                batch = next(self._task.batches)
                self.computed_s += perf_counter() - began
                step = self._own.step(lambda batch=batch: self._task.loss(self._own.ddp, batch))  # type: ignore[misc]
                self.computed_s += step.compute_s
        self.plan = self._own.chosen

    def close(self) -> None:
        """Detach gradwire and close its connections."""
        self._own.close()


class Pipelined(ComparedMethod):
    """Gradwire's Pipe-SGD, drained after every block; without a plan, the run chooses one."""

    def __init__(self, task: TrainingTask, plan: Plan | None, correction: str = "eager") -> None:
        self.model, self._task, self._chooses = task.model, task, plan is None
        self._pipe = gradwire.PipeSGD(
            task.model, task.optimizer(task.model), plan, correction=correction, timeout_s=TIMEOUT_S
        )

    def train(self, steps: int) -> None:
        """Train for ``steps`` more steps."""
        for _ in range(steps):
            batch = next(self._task.batches)
            record = self._pipe.step(lambda batch=batch: self._task.loss(self._task.model, batch))  # type: ignore[misc]
            self.local_s += record.correction_s
        self._pipe.drain()
        if self._chooses:
            self.plan = self._pipe.plan

    def close(self) -> None:
        """Close the pipeline."""
        self._pipe.close()


def attached(task: TrainingTask, plan: Plan) -> ComparedOnDDP:
    """Return DDP training with gradwire attached and the plan's bucket size."""
    bucket_mb = _ONE_BUCKET_MB if plan.bucket_nbytes is None else plan.bucket_nbytes / (1 << 20)
    return ComparedOnDDP(task, lambda ddp: gradwire.attach(ddp, plan, timeout_s=TIMEOUT_S), bucket_mb)


def chosen_in_the_run(task: TrainingTask) -> ComparedOnDDP:
    """Return DDP training with gradwire attached, where the run chooses a plan for DDP's own buckets."""
    return ComparedOnDDP(task, lambda ddp: gradwire.attach(ddp, "auto", timeout_s=TIMEOUT_S))


def torch_methods() -> dict[str, Callable[[TrainingTask], ComparedMethod]]:
    """Return the methods that PyTorch provides, by name."""
    return {
        "DDP": ComparedOnDDP,
        "fp16 hook": lambda task: ComparedOnDDP(task, _fp16_hook),
        "bf16 hook": lambda task: ComparedOnDDP(task, on_ddp.bf16_hook),
        "PowerSGD 1": lambda task: ComparedOnDDP(task, _power_sgd(1), _ONE_BUCKET_MB),
        "PowerSGD 4": lambda task: ComparedOnDDP(task, _power_sgd(4), _ONE_BUCKET_MB),
    }


def _fp16_hook(ddp: DistributedDataParallel) -> None:
    ddp.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)


def _power_sgd(rank: int) -> Callable[[DistributedDataParallel], object]:
    """Register PowerSGD for a single bucket: with several, Gloo aborts on unordered collectives."""

    def register(ddp: DistributedDataParallel) -> None:
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=2, min_compression_rate=1
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    return register


CODECS = ["bf16", "errbound:rel=0.05", "errbound:rel=0.25,block=1024", "fp8", "quantize:8", "quantize:4"]
"""The planner's candidate codecs, which work for gradients of any scale."""
NAMED = {"fp8": "ring", "ecsq:0.5": "pairwise", "quantize:4": "ring"}
"""The codecs that a user might choose, and their algorithms; the first codec is the default."""
DEFAULT = next(iter(NAMED))
PLANNED = {"planned, on DDP": 1, "planned, PipeSGD": 2}
"""The methods with plans from the planner, and their pipeline depths."""
PATIENCE = 1.5
"""The limit of a method's steps, as a multiple of DDP's steps; beyond it, the loss is not reached."""
COUNTED = 4
"""The minimum number of blocks per method. A method's step time is the median of its blocks' step times."""


def measure(
    ranks: Ranks,
    cells: Sequence[Cell],
    data_dir: str | None = None,
    images: str | None = None,
    text: str | None = None,
    device: str = "cpu",
    target: float | None = None,
) -> None:
    """Train the cells' task with each cell's method and seed, up to the loss ``target`` if it is given."""
    files = Files(*(None if name is None else Path(name) for name in (data_dir, images, text)))

    def new_task() -> TrainingTask:
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


def methods(plans: dict[str, Plan]) -> dict[str, Callable[[TrainingTask], ComparedMethod]]:
    """Return every method by name, where ``plans`` come from the planner."""
    named = dict(plans)
    for codec, algorithm in NAMED.items():
        named[f"{codec} on DDP"] = Plan(parse(codec), algorithm, bucket_nbytes=25 << 20)
        named[f"{codec} PipeSGD"] = Plan(parse(codec), algorithm, pipeline=2)
    stale = Plan(parse(DEFAULT), pipeline=2)
    return {
        ALONE: partial(ComparedOnDDP, exchanging=False),
        **torch_methods(),
        **{
            name: partial(Pipelined if plan.pipeline > 1 else attached, plan=plan)
            for name, plan in named.items()
        },
        f"{DEFAULT} PipeSGD, stale": partial(Pipelined, plan=stale, correction="none"),
        ATTACHED: chosen_in_the_run,
        PIPELINED: partial(Pipelined, plan=None),
        "DDP again": ComparedOnDDP,
    }


def planned(ranks: Ranks, task: TrainingTask) -> dict[str, Plan]:
    """Return the planner's plans for this network and task, identical on all ranks."""
    forward_s, backward_s, update_s, gradient = computation(task)
    environment = ranks.environment(["identity", *CODECS], samples=[gradient])
    found: dict[str, Plan] = {}
    if environment is not None:
        counts = tuple(each.numel() for each in task.model.parameters())
        choose = partial(
            choose_plan,
            counts,
            ranks.world,
            forward_s=forward_s,
            backward_s=backward_s,
            update_s=update_s,
            line=environment.line,
            host=environment.host,
            costs=environment.codecs,
            codecs=CODECS,
            shared_machine=True,
        )
        found = {name: choose(pipelines=(pipeline,)).plan for name, pipeline in PLANNED.items()}
    everyones: dict[str, Plan] = ranks.gather(found)[0]
    return everyones


def in_words(plan: Plan) -> str:
    """Return a plan's codec, algorithm, and segment size as text."""
    segment = "" if plan.algorithm == "backend" else f" {plan.segment_nbytes >> 10}K"
    return f"{plan.codec} {plan.algorithm}{segment}"


def computation(task: TrainingTask) -> tuple[float, float, float, torch.Tensor]:
    """Return the seconds of forward, backward, and update while all hosts compute, and a gradient."""
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
        gradient = flat(each.grad.cpu() for each in task.model.parameters() if each.grad is not None)
        updating = time.perf_counter()
        optimizer.step()
        task.wait()
        spent.append((forward - began, backward - forward, time.perf_counter() - updating))
    forward_s, backward_s, update_s = (statistics.median(times) for times in zip(*spent[1:], strict=True))
    return forward_s, backward_s, update_s, gradient


def computed_s(task: TrainingTask) -> float:
    """Return the seconds of a DDP step except its wait for averages, while all hosts train.

    This includes the overhead of loading, DDP, and the interpreter, after which the last host starts to send.
    """
    method, spent = attached(task, Plan(parse(DEFAULT))), []
    for _ in range(COUNTED):
        method.train(task.block)
        spent.append(method.computed_s / task.block)
    method.close()
    return statistics.median(spent[1:])


def train(ranks: Ranks, method: ComparedMethod, task: TrainingTask, target: float | None) -> dict[str, Any]:
    """Train until the held-out loss is at most ``target``, for a limited number of blocks.

    The limit is DDP's number of blocks without a target, ``PATIENCE`` times that number with a target, and
    ``COUNTED`` blocks with an infinite target.
    """
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
    later = blocks[1:]  # without the first block, which connects and rebuilds buckets
    return {
        "step_s": statistics.median(undisturbed(later, 3, enough=1)),
        "curve": curve,
        "accuracies": accuracies,
        "blocks": blocks,
        "local_s": local_s,
    }
