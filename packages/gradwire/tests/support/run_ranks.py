"""What processes of the tests of runs execute: scripts without gradwire, and a session to attach it."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import AttachError
from gradwire.run.comparison import PLAIN
from gradwire.run.methods import DdpModel, plain_hook
from gradwire.run.models import IDLE_STEPS, SETTLING
from gradwire.run.session import RunSession
from gradwire.run.settings import RunSettings
from support.ddp_ranks import SMALL_BUCKETS, loss_of, make_model, weights

STEPS = 5


def session(folder: str, plan: str | None, **changes: Any) -> RunSession:
    return RunSession(RunSettings(folder, plan, quiet=dist.get_rank() != 0, **changes))


def ddp(folder: str, plan: str, kind: str) -> list[torch.Tensor]:
    """Return the final weights of a plain run, a run with a session, and a run that calls attach."""
    found = []
    for method in ("plain", "run", "attach"):
        options = {**SMALL_BUCKETS, "gradient_as_bucket_view": kind == "views"}
        model = DistributedDataParallel(make_model(), **options)
        if method == "run":
            running = session(folder, plan)
            running.add_ddp(model)
        if method == "attach":
            attached = gradwire.attach(model, plan)
        if kind == "evaluates" and dist.get_rank() == 0:  # on one rank only, as nanoGPT does
            model.eval()
            with torch.no_grad():
                model(torch.randn(4, 32))
            model.train()  # type: ignore[no-untyped-call]
        passes = 2 if kind == "accumulates" else 1
        found.append(train(model, STEPS, passes=passes))
        if method == "run":
            running._save(now=True)
        if method == "attach":
            attached.close()
    return found


def train(model: nn.Module, steps: int, passes: int = 1) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            alone = part < passes - 1
            with model.no_sync() if alone else contextlib.nullcontext():  # type: ignore[operator]
                loss_of(model, step * passes + part).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return weights(model)


def fsdp(folder: str, plan: str | None, replicas: int) -> list[torch.Tensor]:
    """Return the final shards of a plain run, a run with a session, and a run that calls attach_fsdp."""
    found = []
    world = dist.get_world_size()
    shape = (replicas, world // replicas) if replicas > 1 else (world,)
    for method in ("plain", "run", "attach"):
        model = make_model()
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
        running = session(folder, plan)
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
            if method == "run":
                running.add_fsdp(layer)
        attached = gradwire.attach_fsdp(model, plan) if method == "attach" else None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, step).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        shards = [each.to_local().detach().flatten() for each in model.parameters()]  # type: ignore[attr-defined]
        found.append(torch.cat(shards))
        if method == "run":
            running._save(now=True)
            running._models[0].handle.close()
        if attached is not None:
            attached.close()
    return found


def refused(folder: str, kind: str, strict: bool = False) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Return the weights of a script that excludes gradwire, with and without a session, and any error."""
    found, error = [], ""
    for runs in (False, True):
        model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
        if runs:
            running = session(folder, "fp8", strict=strict)
            running.add_ddp(model)
        attached = None
        if kind == "hook":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        if kind == "attached":
            attached = gradwire.attach(model, "quantize:8")
        try:
            found.append(train(model, STEPS))
        except AttachError as refusal:
            error = str(refusal)
            found.append(weights(model))
        if runs:
            running._save(now=True)
        if attached is not None:
            attached.close()
    return found[0], found[1], error


def several(folder: str) -> list[torch.Tensor]:
    """Train two of three models with one session, and a copy of the first; return their weights."""
    running = session(folder, "fp8")
    models = [DistributedDataParallel(make_model(), **SMALL_BUCKETS) for _ in range(3)]
    for each in models:
        running.add_ddp(each)
    copied = copy.deepcopy(models[0])  # of which the session knows nothing
    found = [train(each, STEPS) for each in (*models[:2], copied)]
    models[2].eval()
    models[2](torch.randn(2, 32))
    running._save(now=True)
    return found


def one_rank_cannot(folder: str) -> list[torch.Tensor]:
    """Return the weights of a run in which one rank fails after attaching, and of a plain one."""
    found = []
    for runs in (True, False):
        model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
        running = session(folder, "fp8", timeout_s=10.0)
        if runs:
            running._wait_for(model, Failing if dist.get_rank() == 1 else DdpModel)
        found.append(train(model, STEPS))
        if runs:
            running._save(now=True)
    return found


class Failing(DdpModel):
    """A model whose rank attaches with the others, and fails then."""

    def attach(self, settings: RunSettings, ledger: gradwire.Ledger) -> gradwire.Attached:
        attached = super().attach(settings, ledger)
        self.give_up(attached)
        raise AttachError("no memory is left")


def methods_of(running: RunSession) -> list[str]:
    """Return a list that grows by the method of each step that ``running`` counts from now on."""
    seen: list[str] = []
    note = running._passed

    def passed(model: Any, method: str) -> None:
        seen.append(method)
        note(model, method)

    running._passed = passed  # type: ignore[method-assign]
    return seen


def compared(folder: str, kind: str, steps: int) -> tuple[dict[str, Any], list[str]]:
    """Return the cycles of a comparison, and the methods of the first steps after it began."""
    running = session(folder, None if kind == "auto" else "fp8", cycles=3)
    seen = methods_of(running)
    model: Any = make_model()
    if kind == "fsdp":
        for each in (model[0], model):
            fully_shard(each)
            running.add_fsdp(each)
    else:
        model = DistributedDataParallel(model, **SMALL_BUCKETS)
        running.add_ddp(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    running._save(now=True)
    handle = running._models[0].handle
    found: dict[str, Any] = {"cycles": running._turns.cycles_s(), "steps": handle.ledger.summary().steps}
    found["wall_s"] = handle.ledger.summary().wall_s
    if kind == "fsdp":
        handle.close()
    return found, seen


def finished_in_a_turn(folder: str) -> tuple[list[str], int]:
    """Delete the larger of two models in a turn of PyTorch's all-reduce, and train the other on.

    Return the methods of the other's steps, and the number of complete cycles.
    """
    running = session(folder, "fp8", cycles=3)
    large = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    small = DistributedDataParallel(nn.Linear(32, 4))
    for each in (large, small):
        running.add_ddp(each)
        train(each, 1)
    train(large, SETTLING + 2)
    del each, large
    seen = methods_of(running)
    train(small, IDLE_STEPS + SETTLING + 3 * 5 * 3 + 4)
    return seen, len((running._turns.cycles_s() or {})[PLAIN])


def stood_in(views: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights of plain DDP, and those averaged by the comparison's plain method."""
    found = []
    for hooked in (False, True):
        model = DistributedDataParallel(make_model(), gradient_as_bucket_view=views, **SMALL_BUCKETS)
        if hooked:
            model.register_comm_hook(model, _plain)
        found.append(train(model, STEPS))
    return found[0], found[1]


def _plain(model, bucket):  # type: ignore[no-untyped-def] # DDP wants annotations to be classes
    return plain_hook(model, bucket)
