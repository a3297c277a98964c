"""The paths of attach and of a bucket are the lists in CONTRIBUTING.

Of attach, the first calls of the listed functions come in this order, and no room below ``sync`` calls it or
one above it. Of a bucket, each rank records a warm step of two ranks over sockets, on all threads, from the
call of DDP's hook until the bucket's future is complete. The path are the functions under way where the
bucket passes from one thread to the other, into the kernel, out of it, or back to DDP. Each counts once.
"""

from __future__ import annotations

import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.ddp.attach import gradwire_hook
from support.project import ROOT

SOURCE = str(Path(gradwire.__file__).parent)
WARM_STEPS, STEPS = 2, 3
CROSSINGS = ("put", "sendmsg", "recv_into", "set_result")
"""What carries a bucket on: between threads, into the kernel and out of it, and back to DDP."""


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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rows = project["tool"]["importlinter"]["contracts"][0]["layers"]
    return {room.strip(): number for number, row in enumerate(rows) for room in row.split("|")}


def attach_walk(rows: dict[str, int]) -> tuple[list[str], list[tuple[str, str]]]:
    """Attach a model; return the functions in the order of their first calls, and the calls upwards."""
    entered, upwards = list[CodeType](), list[tuple[str, str]]()

    def room_of(code: CodeType) -> str:
        return Path(code.co_filename).relative_to(SOURCE).parts[0].removesuffix(".py")

    def note(frame: FrameType, event: str, _: object) -> None:
        code, caller = frame.f_code, frame.f_back
        if event != "call" or not code.co_filename.startswith(SOURCE) or code.co_name == "<module>":
            return
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
