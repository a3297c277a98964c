"""The training methods that are compared: torch's own hooks, and gradwire's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.experiments.training.tasks import Task
from gradwire.job import on_ddp
from gradwire.plan import Plan

TIMEOUT_S = 120.0
_ONE_BUCKET_MB = 1 << 20


class Method(ABC):
    """One way to train one task from its first weights: ``train`` goes on, ``close`` ends it."""

    model: torch.nn.Module
    local_s: float = 0.0
    """Seconds of an eager pipeline's own updates so far."""
    plan: Plan | None = None
    """What the run has chosen itself."""

    @abstractmethod
    def train(self, steps: int) -> None:
        """Take so many steps; all of them are applied when it returns."""

    @abstractmethod
    def close(self) -> None:
        """Give connections up."""


class OnDDP(Method):
    """DDP with a hook, or without; ``exchanging`` False leaves each rank alone with its gradients.

    ``computed_s`` are the seconds of the last steps besides their waits for averages.
    """

    def __init__(
        self,
        task: Task,
        hook: Callable[[DistributedDataParallel], object] | None = None,
        bucket_mb: float | None = None,
        *,
        exchanging: bool = True,
    ) -> None:
        self.model, self._task, self._exchanging = task.model, task, exchanging
        self._own = on_ddp.OnDDP(task.model, task.optimizer(task.model), hook, bucket_mb=bucket_mb)

    def train(self, steps: int) -> None:
        """Take so many steps."""
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
        """Close what gradwire attached."""
        self._own.close()


class Pipelined(Method):
    """gradwire's Pipe-SGD, drained at the end of every block, so that what it reaches is in the weights.

    Without a plan, it chooses.
    """

    def __init__(self, task: Task, plan: Plan | None, correction: str = "eager") -> None:
        self.model, self._task, self._chooses = task.model, task, plan is None
        self._pipe = gradwire.PipeSGD(
            task.model, task.optimizer(task.model), plan, correction=correction, timeout_s=TIMEOUT_S
        )

    def train(self, steps: int) -> None:
        """Take so many steps."""
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


def attached(task: Task, plan: Plan, bucket_mb: float | None = None) -> OnDDP:
    """Return training with gradwire on DDP, with the plan's buckets unless ``bucket_mb`` is given."""
    if bucket_mb is None:
        bucket_mb = _ONE_BUCKET_MB if plan.bucket_nbytes is None else plan.bucket_nbytes / (1 << 20)
    return OnDDP(task, lambda ddp: gradwire.attach(ddp, plan, timeout_s=TIMEOUT_S), bucket_mb)


def chosen_in_the_run(task: Task) -> OnDDP:
    """Return training with gradwire on DDP, which chooses its plan; with DDP's own buckets."""
    return OnDDP(task, lambda ddp: gradwire.attach(ddp, "auto", timeout_s=TIMEOUT_S))


def torch_methods() -> dict[str, Callable[[Task], Method]]:
    """Return the methods that PyTorch ships, by name."""
    return {
        "DDP": OnDDP,
        "fp16 hook": lambda task: OnDDP(task, _with(default_hooks.fp16_compress_hook)),
        "bf16 hook": lambda task: OnDDP(task, on_ddp.bf16_hook),
        "PowerSGD 1": lambda task: OnDDP(task, _power_sgd(1), _ONE_BUCKET_MB),
        "PowerSGD 4": lambda task: OnDDP(task, _power_sgd(4), _ONE_BUCKET_MB),
    }


def _with(
    hook: Callable[..., torch.futures.Future[torch.Tensor]],
) -> Callable[[DistributedDataParallel], object]:
    return lambda ddp: ddp.register_comm_hook(dist.group.WORLD, hook)


def _power_sgd(rank: int) -> Callable[[DistributedDataParallel], object]:
    """One bucket: with several, its callbacks issue collectives in different orders and Gloo aborts."""

    def register(ddp: DistributedDataParallel) -> None:
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=2, min_compression_rate=1
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    return register
