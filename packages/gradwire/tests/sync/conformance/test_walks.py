"""The paths of attach, of a bucket and of a dead peer's error are the lists in CONTRIBUTING.

Of attach, the first calls of the listed functions come in this order, and no room below ``sync`` calls it or
one above it. Of a bucket, each rank records a warm step of two ranks over sockets, on all threads, from the
call of DDP's hook until the bucket's future is complete. The path are the functions under way where the
bucket passes from one thread to the other, to the native engine, or back to DDP. Each counts once. Of a dead
peer's error, the other rank records which functions are called, call another one, or are left, from the
moment when a channel explains that its connection has ended.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire._native import engine
from gradwire.ddp.attach import gradwire_hook
from gradwire.errors import ExchangeError
from gradwire.links.channel import Channel
from support.project import ROOT, read_toml
from support.sharded import Case, loss_of, make_model, shard

SOURCE = str(Path(gradwire.__file__).parent)
WARM_STEPS, STEPS = 2, 3
CROSSINGS = ("put", "set_result")
"""What carries a bucket on, besides the native engine: between threads, and back to DDP."""
DEAD = 1
"""The rank of two that dies."""
OTHERS_ALONE = {
    "gradients": ["fsdp/comms.py GatherWeights.__call__"],
    "weights": ["sync/gradient_sync.py GradientSync.run", "fsdp/comms.py ScatterGradients.__call__"],
}
"""What the errors of other collectives alone pass."""


class Walk:
    """Recorder of functions under way at a crossing, from the hook's call to the future's completion."""

    def __init__(self) -> None:
        self.path: list[CodeType] = []
        self._seen: set[CodeType] = set()
        self._notes = False

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what the hook's buckets enter in the ``with`` block."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def forget(self) -> None:
        """Begin anew."""
        self.path, self._seen = [], set()

    def _profile(self, frame: FrameType, event: str, result: Any) -> None:
        code = frame.f_code
        if self._notes and event == "c_call" and result.__name__ in CROSSINGS:
            self._cross(frame)
        if event == "call":
            self._notes |= code is gradwire_hook.__code__
            if self._notes and code.co_filename.startswith(SOURCE):
                self._seen.add(code)
            if self._notes and code is engine.run.__code__:
                self._cross(frame)
        elif event == "return" and code is gradwire_hook.__code__:
            result.wait()  # backward goes on afterwards: what ends the step is not the bucket's
            self._notes = False

    def _cross(self, frame: FrameType | None) -> None:
        stack = list[CodeType]()
        while frame is not None:
            stack.insert(0, frame.f_code)
            frame = frame.f_back
        self.path += [code for code in stack if code in self._seen and code not in self.path]


def names(codes: list[CodeType]) -> list[str]:
    """Return functions in the order in which they were entered, as "links/sockets.py SocketLink.isend"."""
    return [
        f"{Path(code.co_filename).relative_to(SOURCE)} {code.co_qualname}"
        for code in codes
        if not code.co_name.startswith("<")  # comprehensions, which later Pythons enter no more
    ]


def walk(spec: str) -> list[str]:
    """Train with one bucket; return its path in some warm steps."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(256, 255))
    noted = Walk()
    with noted.noting():  # also what the communication thread does, which begins here
        attached = gradwire.attach(model, gradwire.Plan(gradwire.parse(spec)))
        for step in range(WARM_STEPS + STEPS):
            if step == WARM_STEPS:
                noted.forget()
            model(torch.ones(1, 256)).square().mean().backward()
    attached.close()
    return names(noted.path)


def _rooms() -> dict[str, int]:
    """Return the rooms of the core, and which row each is in, from above."""
    project = read_toml(ROOT / "pyproject.toml")
    rows = project["tool"]["importlinter"]["contracts"][0]["layers"]
    return {room.strip(): number for number, row in enumerate(rows) for room in row.split("|")}


def attach_walk(rows: dict[str, int]) -> tuple[list[str], list[tuple[str, str]]]:
    """Attach a model; return the functions in the order of their first calls, and the calls upwards."""
    entered, upwards = list[CodeType](), list[tuple[str, str]]()

    def room_of(code: CodeType) -> str:
        return Path(code.co_filename).relative_to(SOURCE).parts[0].removesuffix(".py")

    def note(frame: FrameType, event: str, _: object) -> None:
        code, caller = frame.f_code, frame.f_back
        if event != "call" or not code.co_filename.startswith(SOURCE) or code.co_name.startswith("<"):
            return  # a module's body, or a generator expression, which its caller passed down
        if code not in entered:
            entered.append(code)
        while caller is not None and not caller.f_code.co_filename.startswith(SOURCE):
            caller = caller.f_back
        if caller is None or room_of(caller.f_code) == "deferred":  # a decorator
            return
        above, below = rows.get(room_of(code), 0), rows.get(room_of(caller.f_code), 0)
        if above < below and above <= rows["sync"]:
            upwards.append((caller.f_code.co_qualname, code.co_qualname))

    model = DistributedDataParallel(nn.Linear(3, 2))
    sys.setprofile(note)
    attached = gradwire.attach(model, "fp8")
    sys.setprofile(None)
    attached.close()
    return names(entered), upwards


class ErrorWalk:
    """Recorder of the functions that an error passes, once the engine has read a connection's end."""

    def __init__(self) -> None:
        self.path: list[CodeType] = []

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Note a function of gradwire that is called or left, and before that the one that calls it."""
        code, caller = frame.f_code, frame.f_back
        if event not in ("call", "return") or not code.co_filename.startswith(SOURCE):
            return
        if not self.path and code is not Channel.reason_of.__code__:
            return
        for each in (caller, frame) if event == "call" else (frame,):
            if each is not None and each.f_code.co_filename.startswith(SOURCE):
                self.path += [each.f_code] * (each.f_code not in self.path)


def dead_peer_walk(collective: str) -> list[str]:
    """Let a peer die before FSDP's collective; return what the error passes on the other rank."""
    model, rank, gathers = make_model(), dist.get_rank(), collective == "weights"
    shard(model, Case(reshard_after_forward=gathers))  # if not, backward gathers no weights
    gradwire.attach_fsdp(model, "errbound:2^-10", timeout_s=5.0)
    loss_of(model, rank, 0).backward()  # type: ignore[no-untyped-call]
    model.zero_grad()
    loss = None if gathers else loss_of(model, rank, 1)
    dist.barrier()
    if rank == DEAD:
        os._exit(1)
    noted = ErrorWalk()
    sys.setprofile(noted.profile)
    with pytest.raises(ExchangeError):
        (loss_of(model, rank, 1) if loss is None else loss).backward()  # type: ignore[no-untyped-call]
    sys.setprofile(None)
    return names(noted.path)


def listed(path: str) -> list[str]:
    """Return the functions of a path that CONTRIBUTING lists."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition(path)[2].partition("\n    ")[2]
    lines = f"    {text}".partition("\n\n")[0].splitlines()
    return [" ".join(line.split()[:2]) for line in lines]


pytestmark = pytest.mark.processes


def test_attach_takes_the_path_that_contributing_lists(run_processes: Callable[..., list[Any]]) -> None:
    path = listed("path of `gradwire.attach`")
    assert len({each.partition(" ")[0] for each in path}) <= 15
    for entered, upwards in run_processes(2, attach_walk, _rooms(), alone=True):
        assert [each for each in entered if each in path] == path
        assert upwards == []


@pytest.mark.parametrize("spec", ["fp8", "identity"])
def test_a_bucket_takes_the_path_that_contributing_lists(
    run_processes: Callable[..., list[Any]], spec: str
) -> None:
    for path in run_processes(2, walk, spec, alone=True):
        assert path == listed("path of one bucket")


@pytest.mark.parametrize("collective", OTHERS_ALONE)
def test_the_error_of_a_dead_peer_takes_the_path_that_contributing_lists(
    run_processes: Callable[..., list[Any]], collective: str
) -> None:
    path = listed("path of a dead peer")
    noted = run_processes(2, dead_peer_walk, collective, absent=(DEAD,))[1 - DEAD]
    own = [each for each in path if each not in OTHERS_ALONE[collective]]
    assert len(path) == len(own) + len(OTHERS_ALONE[collective])
    assert [each for each in noted if each in path] == own
