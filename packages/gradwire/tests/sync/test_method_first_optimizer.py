"""What torch imports for a process's first optimizer takes seconds; no peer is to wait for it."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire

model = torch.nn.Linear(3, 1)
for each in model.parameters():
    each.grad = torch.zeros_like(each)
{make}
before = set(sys.modules)
torch.optim.AdamW(model.parameters()).step()
print(len([name for name in set(sys.modules) - before if name.split(".")[0] == "torch"]))
"""
FEW = 10
"""Modules of torch; without gradwire there are hundreds."""


def imported_after(make: str) -> int:
    """Return how many modules of torch a process's first optimizer imports, after it has made a method."""
    command = [sys.executable, "-c", _SCRIPT.format(make=make)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)


def test_attach_has_imported_what_the_first_optimizer_needs() -> None:
    attach = (
        'dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)\n'
        "gradwire.attach(DistributedDataParallel(model)).close()"
    )
    assert imported_after(attach) < FEW
