"""What a step on DDP does and costs, in a world of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.attached import Attached
from gradwire.sync.ledger.counts import StepRecord
from gradwire_lab.job.on_ddp import OnDDP, bf16_hook


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def made(hook: Callable[[DistributedDataParallel], object] | None = None, **options: Any) -> OnDDP:
    torch.manual_seed(3)
    model = nn.Linear(6, 4)
    return OnDDP(model, torch.optim.SGD(model.parameters(), lr=0.1), hook, **options)


def step(method: OnDDP) -> StepRecord:
    return method.step(lambda: method.ddp(torch.ones(2, 6)).square().mean())


def test_a_step_is_that_of_the_optimizer() -> None:
    method, alone = made(), nn.Linear(6, 4)
    alone.load_state_dict(method.ddp.module.state_dict())
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = alone(torch.ones(2, 6)).square().mean()
        loss.backward()
        optimizer.step()
        record = step(method)
        assert record.loss == pytest.approx(loss.item())
        assert (record.steps, record.compute_s > 0) == (1, True)
    for ours, theirs in zip(method.ddp.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours, theirs)
    method.close()


def test_ddp_cuts_its_first_bucket_small_as_it_comes() -> None:
    """Any size that is passed, its own 25 too, makes the first bucket as large as the others."""
    assert made().ddp.bucket_bytes_cap_default
    assert not made(bucket_mb=25).ddp.bucket_bytes_cap_default


def test_torchs_bytes_are_those_of_a_ring() -> None:
    """28 floats among 4 ranks: each sends 2 * 3/4 of them, in 4 bytes, or in 2 with the hook."""
    for float_nbytes, hook in ((4, None), (2, bf16_hook)):
        method = made(hook, float_nbytes=float_nbytes)
        method._world = 4
        for _ in range(5):
            step(method)
        cost = method.drain().cost
        assert cost.raw_nbytes == 5 * 4 * 42
        assert cost.wire_nbytes == 5 * float_nbytes * 42
        again = method.drain()
        assert (again.cost.wire_nbytes, again.exposed_s) == (0, 0.0), "counted once"


def test_the_hook_rounds_to_bfloat16() -> None:
    method = made(bf16_hook)
    step(method)
    for parameter in method.ddp.parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, parameter.grad.bfloat16().float())


def test_gradwires_bytes_are_the_ledgers() -> None:
    method = made(lambda ddp: gradwire.attach(ddp, "fp8"))
    for _ in range(2):
        step(method)
    assert isinstance(method._hooked, Attached)
    total = method._hooked.ledger.summary().total
    assert total.exchanges == 2
    drained = method.drain().cost
    assert (drained.raw_nbytes, drained.wire_nbytes) == (total.cost.raw_nbytes, total.cost.wire_nbytes)
    assert method.drain().cost.frames == 0
    method.close()
    method.close()


def test_a_plan_is_chosen_where_the_run_decided() -> None:
    for plan in ("fp8", "auto"):
        method = made(lambda ddp, plan=plan: gradwire.attach(ddp, plan))  # type: ignore[misc]
        assert method.chosen is None, "nothing is decided before the first steps"
        method.close()
    assert made().chosen is None
