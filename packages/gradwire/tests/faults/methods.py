"""The three front doors of gradwire's training, behind one interface: model, optimizer, attach, step."""

from __future__ import annotations

import copy
import hashlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import gradwire
from faults.case import TIMEOUT_S
from faults.model import make_model
from gradwire.attached import Attached
from gradwire.plan import SEGMENT_UNIT_NBYTES

Loss = Callable[[nn.Module], torch.Tensor]


@dataclass(frozen=True)
class Setup:
    """What a rank attaches with; ``group`` None is the world, and ``pipeline`` is for ``PipeSGD``."""

    codec: str = "errbound:2^-10"
    segment_nbytes: int = SEGMENT_UNIT_NBYTES
    algorithm: str = "ring"
    group: dist.ProcessGroup | None = None
    pipeline: int = 2
    chooses: bool = False
    lanes: int = 1
    timeout_s: float = TIMEOUT_S

    def plan(
        self, pipeline: int = 1, algorithm: str | None = None, lanes: int | None = None
    ) -> gradwire.Plan | gradwire.Auto:
        """Return the plan, with segments so small that a step has several frames; or what chooses one."""
        if self.chooses:
            return gradwire.Auto(codecs=["quantize:8", "fp8"])
        codec = gradwire.parse(self.codec)
        how = codec, algorithm or self.algorithm, self.segment_nbytes, pipeline
        return gradwire.Plan(*how, lanes=lanes or self.lanes)


_BUCKET_NBYTES = 52_000
"""So small that the model has a bucket for every lane."""
PLANS = {
    "": Setup(),
    "star": Setup(algorithm="star"),
    "backend": Setup(codec="identity", algorithm="backend"),
    "auto": Setup(chooses=True),
    "lanes": Setup(lanes=3),
    "python": Setup(),
}
"""What all ranks attach with, by the name that a row has for it."""


class Training(ABC):
    """One rank's training by one method; made before it is attached."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    @staticmethod
    @abstractmethod
    def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of a model."""

    @abstractmethod
    def attach(self) -> None:
        """Let gradwire in, together with the other ranks."""

    @abstractmethod
    def let_go(self) -> weakref.ref[object]:
        """Drop what wraps the model, without closing it; return a weak reference to it."""

    @abstractmethod
    def step(self, loss: Loss) -> None:
        """Train on one batch."""

    @abstractmethod
    def close(self) -> None:
        """Give gradwire's thread and connections up."""

    @abstractmethod
    def finish(self) -> None:
        """Apply what is under way."""

    @abstractmethod
    def chosen(self) -> list[int]:
        """Return the steps before which plans were chosen."""

    def tensors(self) -> list[torch.Tensor]:
        """Return weights and optimizer state as a checkpoint would, of a sharded model this rank's shards."""
        held = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        states = [self.optimizer.state.get(parameter, {}) for parameter in held]
        weights = self.model.state_dict().values()
        found = [*weights, *(value for state in states for _, value in sorted(state.items()))]
        return [_local(tensor) for tensor in found if isinstance(tensor, torch.Tensor)]

    def digest(self) -> str:
        """Return a hash of weights and optimizer state, bit for bit."""
        bits = hashlib.sha256()
        for tensor in self.tensors():
            bits.update(tensor.numpy().tobytes())
        return bits.hexdigest()

    def not_finite(self) -> int:
        """Return how many weights are not finite."""
        return sum(int((~_local(weight).isfinite()).sum()) for weight in self.model.state_dict().values())


class Synchronous(Training):
    """Every gradient is applied in its own step, by an ordinary loop."""

    _attached: Attached | None = None

    def step(self, loss: Loss) -> None:
        self.optimizer.zero_grad()
        torch.autograd.backward(loss(self.model))
        self.optimizer.step()

    def finish(self) -> None:
        pass

    def chosen(self) -> list[int]:
        return [] if self._attached is None else [step for step, _ in self._attached.decisions]

    def close(self) -> None:
        if self._attached is not None:
            self._attached.close()


class WithDdp(Synchronous):
    """``gradwire.attach``, with several of DDP's buckets."""

    def __init__(self, setup: Setup, module: nn.Module | None = None) -> None:
        wrapped = DistributedDataParallel(module or make_model(), bucket_cap_mb=_BUCKET_NBYTES / 2**20)
        if setup.group is not None:  # DDP itself would wait for the others in vain
            wrapped.process_group = setup.group
        self.model, self._setup = wrapped, setup
        self._wrapped: DistributedDataParallel | None = wrapped
        self.optimizer = self.make_optimizer(wrapped)

    @staticmethod
    def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    def attach(self) -> None:
        assert self._wrapped is not None
        timeout_s = self._setup.timeout_s
        self._attached = gradwire.attach(
            self._wrapped, self._setup.plan(), timeout_s=timeout_s, begin_timeout_s=timeout_s
        )

    def let_go(self) -> weakref.ref[object]:
        assert self._wrapped is not None
        left: weakref.ref[object] = weakref.ref(self._wrapped)
        self.model, self._wrapped, self._attached = self._wrapped.module, None, None
        return left


class WithPipe(Training):
    """``gradwire.PipeSGD``, two steps under way."""

    def __init__(self, setup: Setup, module: nn.Module | None = None) -> None:
        self.model, self._setup = module or make_model(), setup
        self.optimizer = self.make_optimizer(self.model)
        self._pipe: gradwire.PipeSGD | None = None

    @staticmethod
    def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def attach(self) -> None:
        plan = self._setup.plan(pipeline=self._setup.pipeline)
        if isinstance(plan, gradwire.Plan) and plan.lanes > 1:
            plan = replace(plan, bucket_nbytes=_BUCKET_NBYTES)
        self._pipe = gradwire.PipeSGD(
            self.model, self.optimizer, plan, group=self._setup.group, timeout_s=self._setup.timeout_s
        )

    def step(self, loss: Loss) -> None:
        assert self._pipe is not None
        self._pipe.step(lambda: loss(self.model))

    def finish(self) -> None:
        assert self._pipe is not None
        self._pipe.drain()

    def chosen(self) -> list[int]:
        return [] if self._pipe is None else [step for step, _ in self._pipe.decisions]

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()

    def let_go(self) -> weakref.ref[object]:
        left: weakref.ref[object] = weakref.ref(self.model if self._pipe is None else self._pipe)
        if self._pipe is None:  # nothing wraps it
            self.model = copy.deepcopy(self.model)
            self.optimizer = self.make_optimizer(self.model)
        self._pipe = None
        return left


class WithFsdp(Synchronous):
    """``gradwire.attach_fsdp``: gradients through the codec, weights as they are."""

    def __init__(self, setup: Setup, module: nn.Module | None = None) -> None:
        model: Any = module or make_model()
        group = dist.group.WORLD if setup.group is None else setup.group
        assert isinstance(group, dist.ProcessGroup)
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in [*model.children()][:3:2]:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        self.model, self._setup = model, setup
        self.optimizer = self.make_optimizer(model)

    @staticmethod
    def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    def let_go(self) -> weakref.ref[object]:
        left: weakref.ref[object] = weakref.ref(self.model)  # FSDP changes the model itself
        self.model, self._attached = make_model(), None
        self.optimizer = self.make_optimizer(self.model)
        return left

    def attach(self) -> None:
        plan = self._setup.plan(algorithm="ring", lanes=1)  # the only ones for shards
        self._attached = gradwire.attach_fsdp(self.model, plan, timeout_s=self._setup.timeout_s)


METHODS: dict[str, Callable[..., Training]] = {"ddp": WithDdp, "pipe": WithPipe, "fsdp": WithFsdp}
"""``gradwire.attach``, ``gradwire.PipeSGD`` and ``gradwire.attach_fsdp``: the lines that users write."""


def _local(tensor: torch.Tensor) -> torch.Tensor:
    own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return own.detach()
