"""What torch imports for a process's first optimizer takes seconds; no peer is to wait for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire_lab.parameter_server.ps_sync import Worker

model = torch.nn.Linear(3, 1)
for each in model.parameters():
    each.grad = torch.zeros_like(each)
for door in sys.argv[1:]:
    if os.fork():  # each door is that of a process of its own
        os.wait()
        continue
    if door == "attach":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        gradwire.attach(DistributedDataParallel(model)).close()
    elif door == "Worker":
        Worker(model, gradwire.Plan(algorithm="star"), group=gradwire.loopback(2)[1])
    before = set(sys.modules)
    torch.optim.AdamW(model.parameters()).step()
    found = [name for name in set(sys.modules) - before if name.split(".")[0] == "torch"]
    print(door, len(found), flush=True)
    os._exit(0)
"""
_DOORS = ("attach", "Worker")


@pytest.fixture(scope="module")
def imported() -> dict[str, int]:
    """Return how many modules of torch the first optimizer imports, by what was called before."""
    command = [sys.executable, "-c", _SCRIPT, *_DOORS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return {door: int(count) for door, count in (line.split() for line in done.stdout.splitlines())}


@pytest.mark.parametrize("door", _DOORS)
def test_a_method_has_imported_what_its_first_optimizer_needs(door: str, imported: dict[str, int]) -> None:
    assert imported[door] < 10, "modules of torch; without gradwire there are hundreds"
