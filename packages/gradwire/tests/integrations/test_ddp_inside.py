"""The DistributedDataParallel in what a framework trains, or who is told that there is none."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import AttachError
from gradwire.integrations.attachment import ddp_inside


def test_a_ddp_is_found_in_what_is_compiled_around_it(model: DistributedDataParallel) -> None:
    assert ddp_inside(model, "the test") is model
    assert ddp_inside(torch.compile(model, backend="eager"), "the test") is model
    with pytest.raises(AttachError, match="expected one DistributedDataParallel in its model, got 2"):
        ddp_inside(nn.ModuleList([model, DistributedDataParallel(nn.Linear(1, 1))]), "the test")


def test_a_model_without_ddp_is_refused() -> None:
    with pytest.raises(
        AttachError,
        match=r"the test: expected a DistributedDataParallel .* got a Linear.*only one process.*torchrun",
    ):
        ddp_inside(nn.Linear(4, 2), "the test")
    with pytest.raises(AttachError, match="got a NoneType without one"):
        ddp_inside(None, "the test")


def test_with_several_processes_another_kind_of_parallelism_is_named(
    model: DistributedDataParallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    with pytest.raises(AttachError, match=r"for DDP.*gradwire\.attach_fsdp.*use_cpu=True"):
        ddp_inside(model.module, "the test")
