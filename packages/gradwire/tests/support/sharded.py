"""What one rank does in tests of FSDP2: build a small model, shard it, train, and tell what it saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import gradwire
from gradwire.sync.ledger.summary import Summary

WIDTHS = (7, 13, 5, 2)  # no number of ranks divides them all: FSDP pads
BATCH, RATE = 6, 0.3


@dataclass(frozen=True)
class Case:
    """One training run; ``attach`` None is plain FSDP, else the arguments of ``attach_fsdp``."""

    attach: tuple[Any, ...] | None = None
    steps: int = 3
    mesh: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.float32
    policy: MixedPrecisionPolicy = field(default_factory=MixedPrecisionPolicy)
    prepare: Callable[[FSDPModule], None] | None = None
    reshard_after_forward: bool | int = True
    micro_batches: int = 1


@dataclass
class Seen:
    """What a rank saw: weights as forward used them, whole gradients and weights by step, its last shards."""

    forward: list[list[torch.Tensor]] = field(default_factory=list)
    gradients: list[list[torch.Tensor]] = field(default_factory=list)
    weights: list[list[torch.Tensor]] = field(default_factory=list)
    shards: list[torch.Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    summary: Summary | None = None


class Watched(nn.Linear):
    """Keeps the weight that its last forward pass used."""

    used: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.used = self.weight.detach().clone()
        return super().forward(x)


def make_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(3)
    layers: list[nn.Module] = []
    for i, (width, after) in enumerate(pairwise(WIDTHS)):
        layers += [nn.Tanh()] * (i > 0) + [Watched(width, after)]
    return nn.Sequential(*layers).to(dtype)


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(BATCH, WIDTHS[0], generator=generator)
    return x.to(dtype), x[:, : WIDTHS[-1]].sin().to(dtype)


def loss_of(model: nn.Module, rank: int, step: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x, y = batch(rank, step, dtype)
    return nn.functional.mse_loss(model(x).to(dtype), y)


def whole(tensor: torch.Tensor | None) -> torch.Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.full_tensor().detach().clone()


def shard(model: nn.Module, case: Case) -> FSDPModule:
    sizes = case.mesh or (dist.get_world_size(),)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard")[-len(sizes) :])
    arguments: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": case.policy,
        "reshard_after_forward": case.reshard_after_forward,
    }
    for layer in list(model.modules()):
        if isinstance(layer, nn.Linear) and layer.out_features != WIDTHS[-1]:
            fully_shard(layer, **arguments)
    fully_shard(model, **arguments)  # the last layer's parameters are the root's own
    assert isinstance(model, FSDPModule)
    return model


def train(case: Case) -> Seen:
    torch.set_num_threads(1)
    model = make_model(case.dtype)
    sharded = shard(model, case)
    if case.prepare is not None:
        case.prepare(sharded)
    attached = None if case.attach is None else gradwire.attach_fsdp(model, *case.attach, timeout_s=20.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    seen = Seen()
    for step in range(case.steps):
        seen.weights.append([whole(parameter) for parameter in model.parameters()])
        for micro in range(case.micro_batches):
            sharded.set_requires_all_reduce(micro == case.micro_batches - 1)
            loss = loss_of(model, dist.get_rank(), step + 50 * micro, case.dtype)
            loss.backward()  # type: ignore[no-untyped-call]
        seen.losses.append(loss.item())
        seen.forward.append([layer.used for layer in model.modules() if isinstance(layer, Watched)])
        seen.gradients.append([whole(parameter.grad) for parameter in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor)
        seen.shards.append(parameter.to_local().detach().clone())
    seen.weights.append([whole(parameter) for parameter in model.parameters()])
    if attached is not None:
        seen.summary = attached.ledger.summary()
        attached.close()
    return seen


def train_all(cases: dict[str, Case]) -> dict[str, Seen]:
    """Do several runs one after the other, for starting processes takes longest."""
    return {name: train(case) for name, case in cases.items()}


def expected_gradients(world: int, step: int, micro_batches: int = 1) -> list[torch.Tensor]:
    """Return the gradients of the first step, in float64, from a model that nobody has sharded."""
    model = make_model(torch.float64)
    for rank in range(world):
        for micro in range(micro_batches):
            loss = loss_of(model, rank, step + 50 * micro, torch.float64) / world
            loss.backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in model.parameters()]
    return [gradient for gradient in gradients if gradient is not None]


def largest_difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    return max((a.double() - b.double()).abs().max().item() for a, b in zip(one, other, strict=True))
