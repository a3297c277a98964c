"""What the processes of the tests of profiles run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.profile.session import Session
from gradwire.profile.settings import Settings
from support.ddp_ranks import SMALL_BUCKETS, Checkpointed, loss_of, make_model, weights

STEPS = 7


def settings(folder: str, **changes: Any) -> Settings:
    return Settings(folder, steps=3, warm_up=3, goes_on=True, **changes)


def ddp(folder: str, kind: str) -> tuple[list[torch.Tensor], list[torch.Tensor], dict[str, Any]]:
    """Return the weights of a profiled run and of a plain one after each step, and what is left of hooks."""
    runs, model = [], None
    for profiled in (True, False):
        options = {**SMALL_BUCKETS, "gradient_as_bucket_view": kind == "views"}
        options["find_unused_parameters"] = kind == "unused"
        inner = Checkpointed(reentrant=True) if kind == "checkpoint" else make_model()
        model = DistributedDataParallel(inner, **options)
        session = Session(settings(folder))
        if profiled:
            session.add_ddp(model)
            watched = model
        runs.append(_train(model, kind))
    hooks = [len(each._post_accumulate_grad_hooks or {}) for each in watched.parameters()]
    return runs[0], runs[1], {"hooks": sum(hooks), "parameters": len(hooks)}


def _train(model: nn.Module, kind: str) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=kind != "views")
        passes = 2 if kind == "accumulate" else 1
        for part in range(passes):
            alone = part < passes - 1
            with model.no_sync() if alone else contextlib.nullcontext():  # type: ignore[operator]
                loss_of(model, step * passes + part).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append(weights(model))
    return found


def fsdp(folder: str) -> tuple[list[torch.Tensor], list[torch.Tensor], list[str]]:
    """Return the shards of a profiled run and of a plain one after each step, and the comms' classes."""
    runs = []
    names: list[str] = []
    for profiled in (True, False):
        model, session = make_model(), Session(settings(folder))
        for layer in (model[0], model[2]):
            fully_shard(layer)
            if profiled:
                session.add_fsdp(layer)
        fully_shard(model)
        if profiled:
            session.add_fsdp(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, step).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            found.append(_shards(model))
        runs.append(found)
        state: Any = model._get_fsdp_state()  # type: ignore[operator]
        groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        names += [repr(type(each._reduce_scatter_comm).__mro__) for each in groups]
    return runs[0], runs[1], names


def stopped(folder: str) -> tuple[int, int]:
    """Return after how many steps the script was stopped, and with which exit code."""
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    session, steps = Session(Settings(folder, steps=3, warm_up=2)), 0
    session.add_ddp(model)
    try:
        for step in range(9):
            loss_of(model, step).backward()  # type: ignore[no-untyped-call]
            steps += 1
    except SystemExit as leaving:
        return steps, int(leaving.code or 0)
    return steps, -1


def alone(folder: str) -> int:
    """Return the exit code of a script that wraps a model for a group of one."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    model = DistributedDataParallel(make_model(), process_group=groups[dist.get_rank()])
    try:
        Session(Settings(folder)).add_ddp(model)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    return -1


def _trained(
    model: nn.Module, attached: Any, found: list[Any] | None, look: Callable[[Any], torch.Tensor]
) -> list[torch.Tensor]:
    """Return the weights after each of ten steps; ``found`` gets two estimates from between them."""
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), list[torch.Tensor]()
    for step in range(10):
        if found is not None and step in (1, 9):
            found.append(attached.estimate(rate="10mbit", hosts=4))
        optimizer.zero_grad()
        loss_of(model, step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seen.append(look(model))
    return seen


def asked() -> tuple[list[object], list[torch.Tensor], list[torch.Tensor]]:
    """Return estimates from inside a run, and the weights of this run and of one without them."""
    runs, found = list[list[torch.Tensor]](), list[Any]()
    for asks in (True, False):
        model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
        with gradwire.attach(model, "fp8") as attached:
            runs.append(_trained(model, attached, found if asks else None, weights))
    return [None if each is None else each.values() for each in found], runs[0], runs[1]


def asked_sharded() -> tuple[list[object], bool]:
    """Return estimates from inside a run of FSDP2's, and whether its shards are those of one without them."""
    runs, found = list[list[torch.Tensor]](), list[Any]()
    for asks in (True, False):
        model = make_model()
        for layer in (model[0], model[2]):
            fully_shard(layer)
        fully_shard(model)
        with gradwire.attach_fsdp(model, "fp8") as attached:
            runs.append(_trained(model, attached, found if asks else None, _shards))
    values = [None if each is None else each.values() for each in found]
    return values, all(map(torch.equal, *runs))


def _shards(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.to_local().detach().flatten() for each in model.parameters()])  # type: ignore[attr-defined]


def tried(folder: str, kind: str) -> tuple[int, int]:
    """Return after how many steps a script with ``--try`` was stopped, and with which exit code."""
    made, attached = make_model(), None
    session, steps = Session(Settings(folder, steps=3, warm_up=2, tries=True)), 0
    try:
        if kind == "fsdp":
            session.add_fsdp(fully_shard(made))
        model = DistributedDataParallel(made, **SMALL_BUCKETS)
        session.add_ddp(model)
        if kind == "attached":
            attached = gradwire.attach(model, "fp8")
        if kind == "hooked":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        for step in range(15 if kind == "short" else 300):
            loss_of(model, step).backward()  # type: ignore[no-untyped-call]
            steps += 1
    except SystemExit as leaving:
        return steps, int(leaving.code or 0)
    finally:
        if attached is not None:
            attached.close()
    return steps, -1
