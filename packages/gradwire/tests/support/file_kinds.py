"""All kinds of files that gradwire and its examples write of a training, and how each is read again.

A kind writes one or several files below a folder; its reader returns what a run that resumes would use.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import DSync, Plan, Sharded, redivide
from gradwire.autotune import decision as decisions
from gradwire.autotune.decision import Decision
from gradwire.autotune.steps import Observed
from gradwire.integrations.attachment import Attachment, ResidualFolder, adopted
from gradwire.links import Link
from gradwire.planner.model import RecordedGradients, load_gradients
from gradwire.sync.dcp import read_ranks
from support.elastic import example
from support.observations import observed
from support.ranks import run_ranks

Reader = Callable[[], object]
Kind = Callable[[Path], Reader]
TOPK = Plan(gradwire.parse("topk:0.5"))


@contextmanager
def alone() -> Iterator[None]:
    """Be a world of one rank of ``torch.distributed``."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def by_example(method: str) -> Kind:
    """Train by the elastic example, save as it does, and load as it does after a restart."""

    def write(folder: Path) -> Reader:
        elastic = example()

        def begun() -> tuple[Any, Any, Any]:
            found: tuple[Any, Any, Any] = getattr(elastic, f"with_{method}")(elastic.make_model())
            return found

        with alone():
            parts, step, end = begun()
            for number in range(3):
                step(elastic.batch(number))
            elastic.save(folder, 3, parts)
            end()

        def read() -> object:
            with alone():
                fresh, _, close = begun()
                try:
                    done = elastic.load(folder, fresh)
                    return done, [_on_rank(fresh[name].state_dict()) for name in ("model", "optimizer")]
                finally:
                    close()

        return read

    return write


def _on_rank(content: Any) -> Any:
    """Return a copy, with this rank's part of what is sharded."""
    if isinstance(content, Mapping):
        return {name: _on_rank(part) for name, part in content.items()}
    if isinstance(content, DTensor):
        return content.to_local().detach().clone()
    return copy.deepcopy(content)


def by_method(make: Callable[[nn.Module, Any, Link], Any], *, drains: bool = False) -> Kind:
    """Train by a method of gradwire's own; every rank saves its state, its model's, and its optimizer's."""

    def write(folder: Path) -> Reader:
        model = nn.Linear(5, 3)

        def run(link: Link) -> dict[str, Any]:
            own = copy.deepcopy(model)
            optimizer = torch.optim.AdamW(own.parameters(), lr=1e-2)
            method = make(own, optimizer, link)
            if hasattr(method, "serve"):
                method.serve(3)
            else:
                for _ in range(3):
                    method.step(lambda: own(torch.ones(2, 5)).square().mean())
            if drains:
                method.drain()
            parts = {"model": own, "optimizer": optimizer, "method": method}
            state = {name: part.state_dict() for name, part in parts.items()}
            method.close()
            return state

        for rank, state in enumerate(run_ranks(2, run)):
            gradwire.save_checkpoint(folder / f"rank{rank}.pt", state)
        return lambda: [gradwire.load_checkpoint(each) for each in sorted(folder.iterdir())]

    return write


def attached_state(folder: Path) -> Reader:
    """Save what ``attach`` with ``auto`` returned, beside a ledger and an offload's policy."""
    with alone():
        model = DistributedDataParallel(nn.Linear(4, 2))
        with gradwire.attach(model, "auto") as attached:
            model(torch.ones(2, 4)).sum().backward()
            parts = {"gradwire": attached.state_dict(), "ledger": attached.ledger.state_dict()}
    host = nn.Linear(4, 2)
    offload = gradwire.HostOffload(host, torch.optim.SGD(host.parameters(), lr=0.1), "static:8", device="cpu")
    parts["offload"] = offload.state_dict()
    offload.close()
    gradwire.save_checkpoint(folder / "rank0.pt", parts)
    return lambda: gradwire.load_checkpoint(folder / "rank0.pt")


def residual_files(folder: Path) -> Reader:
    """Write a framework's file of residuals for each rank, and adopt them in a world of one."""
    for rank in range(2):
        residuals = {"weight": torch.arange(6.0) + rank}
        record = {"step": 3, "residuals": {"rank": rank, "world": 2, "residuals": residuals}}
        ResidualFolder(folder).write(record, rank, 2)
    return lambda: adopted(0, 1, 2, ResidualFolder(folder).read(2), 3)


def lightning_file(folder: Path) -> Reader:
    """Write the state of an attachment as Lightning's own writer does, by ``torch.save``."""
    with alone():
        model = DistributedDataParallel(nn.Linear(4, 2))
        attachment = Attachment("topk:0.5")
        attachment.attach(model)
        model(torch.ones(2, 4)).sum().backward()
        torch.save(attachment.state(3), folder / "last.ckpt.gradwire-rank0-of-1.pt")
        attachment.close()

    def read(_rank: int) -> Mapping[str, Any]:
        found: Mapping[str, Any] = torch.load(folder / "last.ckpt.gradwire-rank0-of-1.pt", weights_only=True)
        return found

    return lambda: redivide([adopted(0, 1, 1, read, 3)], 1)


def decision(folder: Path) -> Reader:
    """Keep a decision of ``auto`` for the next run; one that cannot be read is measured anew."""
    chosen = Decision(Plan.of("quantize:8", algorithm="tree"), 0.5, 1.25, 0.25, "quantize:8 over tree")
    decisions.save(str(folder / "auto.json"), "key", "settings", chosen)
    return lambda: decisions.load(str(folder / "auto.json"), "key", "settings") or REFUSED


def plan(folder: Path) -> Reader:
    TOPK.save(folder / "plan.json")
    return lambda: Plan.load(folder / "plan.json")


def recorded(folder: Path) -> Reader:
    gradients = RecordedGradients([], 1)
    gradients.gradients.append(torch.arange(40.0))
    gradients.save(folder / "gradients.pt")
    return lambda: load_gradients(folder / "gradients.pt")


def profiled(folder: Path) -> Reader:
    observed().save(folder / "seen.pt")

    def read() -> object:
        found = Observed.load(folder / "seen.pt")
        return found.values(), found.gradients

    return read


def dcp_folder(folder: Path) -> Reader:
    """Save a pipeline by ``torch.distributed.checkpoint``, and read it for another number of ranks."""
    (link,) = gradwire.loopback(1)
    model = nn.Linear(5, 3)
    with gradwire.PipeSGD(model, torch.optim.SGD(model.parameters(), lr=0.1), TOPK, group=link) as pipe:
        pipe.step(lambda: model(torch.ones(2, 5)).square().mean())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp_save({"pipe": pipe}, checkpoint_id=folder)

    def read() -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (state,) = read_ranks(folder, "pipe")
        (other,) = gradwire.loopback(1)
        fresh = gradwire.PipeSGD(model, torch.optim.SGD(model.parameters(), lr=0.1), TOPK, group=other)
        try:
            fresh.load_state_dict(state)
        finally:
            fresh.abort()
        return state

    return read


REFUSED = object()
"""What a reader returns that warns and does without."""

KINDS: dict[str, Kind] = {
    "example, ddp": by_example("ddp"),
    "example, pipe": by_example("pipe"),
    "example, fsdp": by_example("fsdp"),
    "PipeSGD": by_method(lambda model, optimizer, link: gradwire.PipeSGD(model, optimizer, TOPK, group=link)),
    "DSync": by_method(lambda model, optimizer, link: DSync(model, optimizer, TOPK, group=link)),
    "Sharded": by_method(lambda model, optimizer, link: Sharded(model, optimizer, "bf16", group=link)),
    "attach, Ledger, HostOffload": attached_state,
    "integrations' residuals": residual_files,
    "Lightning's residuals": lightning_file,
    "auto.json": decision,
    "plan.json": plan,
    "recorded gradients": recorded,
    "profile's observation": profiled,
    "torch.distributed.checkpoint": dcp_folder,
}
