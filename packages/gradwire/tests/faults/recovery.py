"""What a survivor does after an error, in its own process: it drops what failed and trains on alone."""

from __future__ import annotations

import copy
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from faults.case import Report
from faults.methods import METHODS, Setup, Training
from faults.model import loss_of

_STEPS = 3
_ALONE = Setup(codec="identity", pipeline=1)


def recover(method: str, training: Training, report: Report) -> None:
    """Drop what wraps the model, which must be gone then, and after an error train on alone."""
    left = training.let_go()
    if method == "fsdp":  # whose own objects hold each other
        gc.collect()
    report.kept = left() is not None
    if report.error is None:
        return
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        _train_on(method, training.model)
    except Exception as error:
        report.alone = f"{type(error).__name__}: {error}"


def _train_on(method: str, module: nn.Module) -> None:
    """Compare the weights with those of plain training."""
    plain = copy.deepcopy(module)
    alone = METHODS[method](_ALONE, module)
    alone.attach()
    optimizer = alone.make_optimizer(plain)
    for batch in range(_STEPS):
        alone.step(lambda model, batch=batch: loss_of(model, 0, batch))  # type: ignore[misc]
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(plain, 0, batch))
        optimizer.step()
    alone.finish()
    alone.close()
    if method != "fsdp":  # whose weights are sharded
        for name, weight in plain.state_dict().items():
            assert torch.equal(module.state_dict()[name], weight), f"{name} is not that of plain training"
