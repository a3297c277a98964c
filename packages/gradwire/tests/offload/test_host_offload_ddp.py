"""DDP around the replica, with gradients through a codec: the oracle is the same DDP without an offload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.offload.host_offload import HostOffload
from support import ddp_ranks

pytestmark = pytest.mark.processes
STEPS = 4


def trained(offloaded: bool, policy: str) -> list[torch.Tensor]:
    torch.set_num_threads(1)
    model = ddp_ranks.make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    offload = HostOffload(model, optimizer, policy, device="cpu") if offloaded else None
    ddp = DistributedDataParallel(model if offload is None else offload.replica, **ddp_ranks.SMALL_BUCKETS)
    attached = gradwire.attach(ddp, "quantize:8", timeout_s=10.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss: torch.Tensor = ddp_ranks.loss_of(ddp, step)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    attached.close()
    if offload is not None:
        offload.close()
    return [each.detach().clone() for each in model.parameters()]


def both() -> list[list[torch.Tensor]]:
    return [trained(False, ""), trained(True, "static:32"), trained(True, "delta")]


def test_averages_through_a_codec_reach_every_ranks_masters(run_processes: Callable[..., list[Any]]) -> None:
    ranks = run_processes(2, both)
    plain, exact, rounded = ranks[0]
    torch.testing.assert_close(exact, plain, rtol=0, atol=0)
    torch.testing.assert_close(rounded, plain, rtol=0, atol=2 * STEPS * 0.01)  # AdamW moves by 0.01 a step
    for other, own in zip(ranks[1], ranks[0], strict=True):
        torch.testing.assert_close(other, own, rtol=0, atol=0)
