"""What torch imports for a process's first optimizer takes seconds; no peer is to wait for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.training import Worker

model = torch.nn.Linear(3, 1)
for each in model.parameters():
    each.grad = torch.zeros_like(each)
if sys.argv[1] == "attach":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    gradwire.attach(DistributedDataParallel(model)).close()
elif sys.argv[1] == "Worker":
    Worker(model, gradwire.Plan(algorithm="star"), group=gradwire.loopback(2)[1])
before = set(sys.modules)
torch.optim.AdamW(model.parameters()).step()
print(len([name for name in set(sys.modules) - before if name.split(".")[0] == "torch"]))
"""


def _imported(door: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, door], capture_output=True, text=True, check=True, timeout=120
    )
    return int(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("door", ["attach", "Worker"])
def test_a_method_has_imported_what_its_first_optimizer_needs(door: str) -> None:
    assert _imported(door) < 10, "modules of torch; without gradwire there are hundreds"
