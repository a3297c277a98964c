"""A rank may come to a step late, but once it has begun it may not stand still."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import ExchangeError, LinkTimeoutError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from support.ddp_ranks import SMALL_BUCKETS, loss_of, make_model, weights
from support.fake_buckets import FakeBucket, reducer_over
from support.saved_residuals import residuals_in
from support.sums import bits

BAD = 99
STEPS = (0, 1, 2, 3, 4, 5)
TOPK = gradwire.Plan(gradwire.parse("topk:0.25"))  # a scale of a power of two changes none of its choices


def late_and_scaled() -> dict[str, Any]:
    """Do both in one set of processes; the exchange of the last is lost."""
    found = scaled_runs()
    found["late"] = _late({"timeout_s": 1.0})
    try:
        found["too late"] = None
        _late({"timeout_s": 0.5, "begin_timeout_s": 0.5})
    except ExchangeError as error:
        found["too late"] = str(error)
    return found


def _late(timeouts: dict[str, Any]) -> list[float]:
    """Return a gradient in three steps, to the third of which rank 1 comes late; to the second DDP waits."""
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    attached = gradwire.attach(model, "identity", **timeouts)
    found = []
    for step in range(3):
        if step == 2 and dist.get_rank() == 1:
            time.sleep(3)
        model.zero_grad()
        model(torch.full((1, 1), dist.get_rank() + 1.0)).sum().backward()
        found.append(float(model.module.weight.grad))
    attached.close()
    return found


def scaled_runs() -> dict[str, Any]:
    """Train with and without a step that overflows, and once more without telling the residuals."""
    found: dict[str, Any] = {"scales": {}}
    skipping = (*STEPS[:3], BAD, *STEPS[3:])
    for name, steps in (
        ("straight", STEPS), ("skipped", skipping), ("following", skipping), ("forgetful", skipping)
    ):  # fmt: skip
        found[name], found["scales"][name], kept = _train(steps, name)
        found["residuals kept"] = kept
    return found


def _train(steps: tuple[int, ...], name: str) -> tuple[torch.Tensor, float, bool]:
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    attached = gradwire.attach(model, TOPK)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = GradScaler("cpu", init_scale=1024.0)
    if name == "following":
        attached.follow(scaler)
    kept = True
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        first: Any = model.module[0].weight  # its bucket goes out last
        bad = step == BAD and dist.get_rank() == 1
        handle = first.register_hook(lambda gradient: gradient * torch.inf) if bad else None
        before = residuals_in(attached.state_dict())
        scaled: Any = scaler.scale(loss)
        scaled.backward()
        if step == BAD:
            after = residuals_in(attached.state_dict())
            kept = all(torch.equal(after[name], before[name]) for name in before)
            assert handle is not None or dist.get_rank() == 0
        if handle is not None:
            handle.remove()
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        if name in ("straight", "skipped"):
            attached.scale_residuals(scaler.get_scale() / scale)
    attached.close()
    return weights(model), scaler.get_scale(), kept


Ranks = Callable[..., list[Any]]
TIMEOUT_S, LATE_S, BEGIN_S = 1.0, 2.5, 30.0


@pytest.mark.parametrize("algorithm", ["ring", "star", "tree"])
@pytest.mark.parametrize("late_at", [0, 1])
def test_only_the_first_bucket_is_waited_for_so_long(
    algorithm: str, late_at: int, run_exchanges: Ranks
) -> None:
    """Rank 1 comes late to the second step, or stands still in it."""

    def body(exchange: Exchange) -> BaseException | list[float]:
        link = exchange.link
        reducer, own = reducer_over(exchange, begin_timeout_s=BEGIN_S)
        buffers = [torch.full((8,), link.rank + 1.0) for _ in range(4)]
        try:
            for number, buffer in enumerate(buffers):
                if link.rank == 1 and number == 2 + late_at:
                    time.sleep(LATE_S)
                index = number % 2
                reducer.take(FakeBucket(index, buffer, last=index == 1), last_waits=True)
        except ExchangeError as error:
            return error
        finally:
            own.close()
        return [float(buffer.mean()) for buffer in buffers]

    found = run_exchanges(3, body, Plan(algorithm=algorithm), timeout_s=TIMEOUT_S)
    if late_at == 0:
        assert found == [[2.0] * 4] * 3
    else:
        assert all(isinstance(error, ExchangeError) for error in found)
        assert any(isinstance(error.__cause__, LinkTimeoutError) for error in found)


@pytest.mark.processes
def test_with_ddp_a_late_rank_is_waited_for_and_a_step_that_a_grad_scaler_skips_leaves_no_trace(
    run_processes: Ranks,
) -> None:
    results = run_processes(2, late_and_scaled)
    assert "no progress within 0.5 s" in results[0]["too late"]
    assert results[1]["too late"] is not None
    for found in results:
        assert found["late"] == [1.5] * 3  # the average of 1 and 2, before and after the wait
        assert found["scales"] == {
            "straight": 1024.0, "skipped": 512.0, "following": 512.0, "forgetful": 512.0
        }  # fmt: skip
        assert found["residuals kept"]
        assert torch.equal(bits(found["skipped"]), bits(found["straight"]))
        assert torch.equal(bits(found["following"]), bits(found["straight"]))
        assert not torch.equal(found["forgetful"], found["straight"]), "the scale of residuals matters"
