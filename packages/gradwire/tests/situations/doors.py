"""Front doors: ways for one training script to average its gradients, each with its oracle."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import GradwireError
from situations.by_hand import PipeByHand
from situations.models import sgd
from support.told_line import telling, unpaced

STEPS = 8
"""``auto`` decides before the sixth step; the last ones use the plan that it has chosen."""
CODEC, BOUND = "errbound:2^-16", 2.0**-16
AUTO, SHARE = gradwire.Auto(codecs=["quantize:8"]), 2.0**-3
"""Its first plan is ``fp8``, which keeps three bits of each value, and encodes twice."""
SMALL_BUCKETS = 0.0004
"""Megabytes; the usual model has several buckets."""
_SLOW = (1e-4, 1e5, 0.0, 1.0)
"""A measured line on which compression pays."""

Loss = Callable[[nn.Module], torch.Tensor]


@dataclass(frozen=True)
class Door:
    """One way into gradwire; without a ``plan``, the same script without gradwire.

    ``oracle`` names the door whose bits are expected. A lossy door has ``error`` instead: it takes the
    magnitudes of the oracle's average and returns how far an average may be from it. ``size`` is the number
    of steps in the pipeline, 0 for DDP.
    """

    plan: Any = None
    oracle: str = "plain"
    size: int = 0
    error: Callable[[torch.Tensor], float] | None = None

    @property
    def chooses(self) -> bool:
        """Whether the run chooses its plan; its error is a share of the average then."""
        return isinstance(self.plan, gradwire.Auto)


DOORS = {
    "plain": Door(),
    "identity": Door(gradwire.Plan()),
    "backend": Door(gradwire.Plan(algorithm="backend")),
    "codec": Door(CODEC, error=lambda _: BOUND),
    "auto": Door(AUTO, error=lambda average: SHARE * float(average.max())),
    "by hand, K=1": Door(size=1),
    "PipeSGD, K=1": Door(gradwire.Plan(pipeline=1), "by hand, K=1", size=1),
    "by hand": Door(size=2),
    "PipeSGD": Door(gradwire.Plan(pipeline=2), "by hand", size=2),
    "PipeSGD, auto": Door(AUTO, "by hand", size=2, error=lambda average: SHARE * float(average.max())),
    "PipeSGD, codec": Door(
        gradwire.Plan(gradwire.parse(CODEC), pipeline=2), "by hand", size=2, error=lambda _: BOUND
    ),
}
ATTACHED = tuple(name for name, door in DOORS.items() if not door.size)
"""Doors for scripts with a loop of their own."""
PIPES = tuple(name for name, door in DOORS.items() if door.size)


@dataclass
class Outcome:
    """One rank's record of one run: losses, averaged gradients, and the last weights; or the error."""

    losses: list[float] = field(default_factory=list)
    averages: list[list[torch.Tensor | None]] = field(default_factory=list)
    before: list[torch.Tensor] = field(default_factory=list)
    weights: list[torch.Tensor] = field(default_factory=list)
    buffers: list[torch.Tensor] = field(default_factory=list)
    decided: list[str] = field(default_factory=list)
    error: str = ""
    ours: bool = False


class Job:
    """One run of a situation through one door, on one rank."""

    def __init__(self, door: Door) -> None:
        self.door, self.rank, self.outcome = door, dist.get_rank(), Outcome()
        self._modules: list[nn.Module] = []
        self._opened: list[Any] = []

    def ddp(self, module: nn.Module, **options: Any) -> DistributedDataParallel:
        """Wrap a module, and attach gradwire unless the door is the plain one."""
        model = DistributedDataParallel(module, **{"bucket_cap_mb": SMALL_BUCKETS, **options})
        self.attach(model)
        self.watch(module)
        return model

    def attach(self, model: DistributedDataParallel) -> None:
        if self.door.plan is not None:
            self._opened.append(gradwire.attach(model, self.door.plan, timeout_s=10))

    def watch(self, module: nn.Module) -> None:
        """Compare this module's weights and buffers at the end."""
        self._modules.append(module)
        self.outcome.before += map(_copied, module.parameters())

    def train(
        self,
        module: nn.Module,
        loss: Callable[..., torch.Tensor],
        optimizer: torch.optim.Optimizer | None = None,
        **options: Any,
    ) -> None:
        """Train for ``STEPS`` steps; ``loss(model, step)`` is of what a script would call."""
        trainer = self.trainer(module, optimizer or sgd(module.parameters()), **options)
        for step in range(STEPS):
            trainer.step(partial(loss, step=step))
        trainer.drain()

    def trainer(self, module: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> Trainer:
        """Return what takes steps: DDP and the optimizer, or Pipe-SGD; ``options`` are DDP's."""
        return Trainer(self, module, optimizer, options)

    def pipe(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        self.watch(module)
        if self.door.plan is None:
            return PipeByHand(module, optimizer, self.door.size)
        pipe = gradwire.PipeSGD(module, optimizer, self.door.plan, timeout_s=10)
        self._opened.append(pipe)
        return pipe

    def saw(self, module: nn.Module) -> None:
        """Compare the averaged gradients, which this module has now."""
        self.outcome.averages.append(
            [None if each.grad is None else _copied(each.grad) for each in module.parameters()]
        )

    def lost(self, loss: torch.Tensor | float) -> None:
        """Compare this loss."""
        self.outcome.losses.append(float(loss))

    def finish(self) -> None:
        """Note how all ended, before anything is closed."""
        for module in self._modules:
            self.outcome.weights += map(_copied, module.parameters())
            self.outcome.buffers += map(_copied, module.buffers())
        for each in self._opened:
            self.outcome.decided += [str(decision.plan.codec) for _, decision in each.decisions]

    def close(self) -> None:
        for each in self._opened:
            each.close()


class Trainer:
    """One model and its optimizer behind a door; ``model`` is what a loss calls."""

    def __init__(
        self, job: Job, module: nn.Module, optimizer: torch.optim.Optimizer, options: dict[str, Any]
    ) -> None:
        self._job, self._module, self._optimizer = job, module, optimizer
        self._pipe = job.pipe(module, optimizer) if job.door.size else None
        self.model = module if self._pipe is not None else job.ddp(module, **options)

    def step(self, loss_of: Loss) -> None:
        """Train on one batch."""
        if self._pipe is not None:
            self._job.lost(self._pipe.step(lambda: loss_of(self.model)).loss)
            return
        self._optimizer.zero_grad()
        loss = loss_of(self.model)
        loss.backward()
        self._job.lost(loss.detach())
        self._job.saw(self._module)
        self._optimizer.step()

    def drain(self) -> None:
        """Apply what a pipeline has under way."""
        if self._pipe is not None:
            self._pipe.drain()


Situation = Callable[[Job], None]


def play_all(situation: Situation, doors: list[str]) -> dict[str, Outcome]:
    """Run one situation through these doors, one after the other, on this rank."""
    with unpaced(), telling(_SLOW), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about options that it is going to rename
        logging.getLogger("gradwire").setLevel(logging.ERROR)
        return {name: _play(situation, DOORS[name]) for name in doors}


def _play(situation: Situation, door: Door) -> Outcome:
    torch.manual_seed(3)
    job = Job(door)
    try:
        situation(job)
        job.finish()
    except Exception as error:
        job.outcome.error, job.outcome.ours = (
            f"{type(error).__name__}: {error}",
            isinstance(error, GradwireError),
        )
    finally:
        job.close()
    dist.barrier()
    return job.outcome


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return copy.deepcopy(tensor.detach().to_dense() if tensor.is_sparse else tensor.detach().contiguous())
