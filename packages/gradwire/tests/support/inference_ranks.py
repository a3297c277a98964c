"""What processes run to see whether calls within ``torch.inference_mode`` harm training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
from support.sharded import whole

WITHIN, PLAIN = torch.inference_mode, torch.no_grad


def inference_tensors(*places: object) -> list[str]:
    """Return what can be reached from there and was made within inference mode."""
    found, seen = [], set()

    def look(content: object, place: str) -> None:
        if id(content) in seen:
            return
        seen.add(id(content))
        if isinstance(content, torch.Tensor):
            if content.is_inference():
                found.append(place)
            return
        inside = dict(_parts(content))
        for name, part in inside.items():
            look(part, f"{place}.{name}")

    for number, each in enumerate(places):
        look(each, f"{number}")
    return found


def _parts(content: object) -> Iterator[tuple[str, object]]:
    if isinstance(content, Mapping):
        yield from ((str(name), part) for name, part in content.items())
    elif isinstance(content, list | tuple | set | frozenset):
        yield from ((str(number), part) for number, part in enumerate(content))
    elif type(content).__module__.startswith(("gradwire", "torch.nn", "torch.optim")):
        yield from vars(content).items() if hasattr(content, "__dict__") else ()
        slots = [name for each in type(content).__mro__ for name in getattr(each, "__slots__", ())]
        yield from ((name, getattr(content, name)) for name in slots if hasattr(content, name))


def batch(step: int) -> torch.Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))


def make_model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def attached(plan: Any, within: bool) -> list[list[float]]:
    """Train by DDP; return the weights."""
    door = WITHIN if within else PLAIN
    inner = make_model()
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with door():
        attached = gradwire.attach(model, plan, optimizer=optimizer, check_replicas_every=2)
        attached.follow(scaler)
    for step in range(6):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
        with door():
            attached.check_replicas()
            attached.check_at_next_step()
            attached.estimate(rate="1gbit")
            state = attached.state_dict()
            model(batch(step))
        if step == 3:
            with door():
                attached.load_state_dict(state)
    assert inference_tensors(attached, inner, optimizer, state) == []
    with door():
        attached.close()
        gradwire.all_reduce(torch.ones(4))
    gradwire.all_reduce(torch.ones(4))
    return [each.flatten().tolist() for each in inner.parameters()]


def attached_fsdp(weights: str | None, within: bool) -> list[list[float]]:
    """Train by FSDP2; return the weights."""
    door = WITHIN if within else PLAIN
    model = make_model()
    for each in (model[0], model[2], model):
        fully_shard(each, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with door():
        attached = gradwire.attach_fsdp(model, "topk:0.5", weights)
    for step in range(4):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
        with door():
            state = attached.state_dict()
            attached.scale_residuals(2.0)
            attached.scale_residuals(0.5)
            attached.estimate(rate="1gbit")
        if step == 2:
            with door():
                attached.load_state_dict(state)
    assert inference_tensors(attached, optimizer, state) == []
    with door():
        attached.close()
    return [whole(each).flatten().tolist() for each in model.parameters()]
