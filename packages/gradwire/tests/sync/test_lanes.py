"""Several lanes: the averages of one lane, more threads, and the same failures, for DDP and pipelines."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import PipeSGD, Plan, parse
from gradwire.errors import AttachError, ExchangeError, LossyError
from gradwire.exchange import Exchange
from gradwire.links import loopback
from gradwire.sync.context import SyncContext
from gradwire.sync.group import connect
from gradwire.sync.thread import Lanes
from support.ddp_ranks import SMALL_BUCKETS, loss_of, make_model, weights

RunProcesses = Callable[..., list[Any]]
pytestmark = pytest.mark.processes


def threads() -> int:
    """Return the number of communication threads of this process."""
    return sum("gradwire communication" in each.name for each in threading.enumerate())


def train(plan: Plan, steps: int = 6, **options: Any) -> tuple[torch.Tensor, int, float]:
    """Train with several buckets; return the weights, the most threads, and the bytes on the wire."""
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    attached = gradwire.attach(model, plan, **options)
    optimizer, most = torch.optim.SGD(model.parameters(), lr=0.1), 0
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        most = max(most, threads())
    nbytes = attached.ledger.summary().total.cost.wire_nbytes
    attached.close()
    assert threads() == 0
    return weights(model), most, nbytes


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("residual", [False, True])
def test_averages_and_bytes_are_those_of_one_lane(
    run_processes: RunProcesses, world: int, residual: bool
) -> None:
    plans = [Plan(parse("fp8"), residual=residual, lanes=lanes) for lanes in (1, 2, 4)]
    found = [run_processes(world, train, plan) for plan in plans]
    for ranks in found:
        assert all(torch.equal(each[0], found[0][0][0]) for each in ranks)
    assert [ranks[0][1] for ranks in found] == [1, 2, 4]
    assert [each[2] for each in found[2]] == [each[2] for each in found[0]]


def follow_then_train() -> tuple[int, torch.Tensor]:
    """Change the number of lanes between steps."""
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    attached = gradwire.attach(model, Plan(parse("fp8")))
    most = 0
    for step, lanes in enumerate((1, 3, 1, 2, 3)):
        attached._sync.follow(Plan(parse("fp8"), lanes=lanes))
        loss_of(model, step).backward()  # type: ignore[no-untyped-call]
        most = max(most, threads())
    attached.close()
    return most, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_a_later_plan_may_have_more_lanes_or_fewer(run_processes: RunProcesses) -> None:
    (most, gradient), (_, other) = run_processes(2, follow_then_train)
    assert most == 3
    assert torch.equal(gradient, other)


def extend_in_vain(failing: int) -> tuple[list[str], int, torch.Tensor]:
    """Let one rank fail to connect a lane between two steps; return reasons, lanes, and a gradient."""
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    attached = gradwire.attach(model, Plan(parse("fp8"), lanes=2), timeout_s=3.0)
    loss_of(model, 0).backward()  # type: ignore[no-untyped-call]
    sync = attached._sync
    with pytest.MonkeyPatch.context() as patched:
        if dist.get_rank() == failing:
            patched.setattr("gradwire.sync.thread.connect", refuse)
        reasons = [sync.connect_lanes(lanes) for lanes in (2, 4)]
    lanes = len(sync._lanes._contexts)
    reasons.append(sync.connect_lanes(3))
    model.zero_grad()
    loss_of(model, 1).backward()  # type: ignore[no-untyped-call]
    attached.close()
    return reasons, lanes, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def refuse(*given: Any, **named: Any) -> None:
    connect(*given, **named).close()
    raise AttachError("the connection is gone")


def test_if_a_rank_cannot_connect_a_lane_all_ranks_keep_their_plan(run_processes: RunProcesses) -> None:
    (own, lanes, gradient), (others, its_lanes, other) = run_processes(2, extend_in_vain, 0)
    assert own == ["", "the connection is gone", ""]
    assert others == ["", "rank 0 could not connect lane 2", ""]
    assert lanes == its_lanes == 2
    assert torch.equal(gradient, other)


def lose_everything() -> str:
    """Train with a codec that loses most of the gradient, and a strict limit."""
    with pytest.raises(LossyError) as caught:
        train(Plan(parse("errbound:2^0"), lanes=3), steps=400, strict=True)
    return str(caught.value)


def test_ranks_agree_on_an_error_after_all_lanes(run_processes: RunProcesses) -> None:
    one, other = run_processes(2, lose_everything)
    assert one == other
    assert "loses" in one


def die(dead: int) -> tuple[str, float, int]:
    """Let one rank end between two buckets; return the error of another one, its time, and the threads."""
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    attached = gradwire.attach(model, Plan(parse("fp8"), lanes=3), timeout_s=20.0)
    loss_of(model, 0).backward()  # type: ignore[no-untyped-call]
    dist.barrier()
    if dist.get_rank() == dead:
        os._exit(1)
    began = time.monotonic()
    with pytest.raises(ExchangeError) as caught:
        loss_of(model, 1).backward()  # type: ignore[no-untyped-call]
    took_s = time.monotonic() - began
    time.sleep(0.5)
    used_s = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - used_s < 0.1, "lanes that have failed are idle"
    attached.close()
    return str(caught.value), took_s, threads()


def test_a_dead_peer_ends_all_lanes(run_processes: RunProcesses) -> None:
    for found in run_processes(3, die, 2, absent=(2,))[:2]:
        sentence, took_s, left = found
        assert "has closed its link" in sentence
        assert took_s < 15.0, "nobody waits for a timeout"
        assert left == 0


def train_with_a_late_rank(lanes: int) -> None:
    """Let rank 1 begin a step later than ``timeout_s``, but earlier than ``begin_timeout_s``."""
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    plan = Plan(parse("fp8"), lanes=lanes)
    attached = gradwire.attach(model, plan, timeout_s=1.0, begin_timeout_s=30.0)
    for step in range(4):
        if step == 2 and dist.get_rank() == 1:
            time.sleep(2.5)
        loss_of(model, step).backward()  # type: ignore[no-untyped-call]
    attached.close()


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_rank_may_begin_a_step_late_whatever_the_lane(run_processes: RunProcesses, lanes: int) -> None:
    run_processes(2, train_with_a_late_rank, lanes)


def pipe(lanes: int) -> torch.Tensor:
    """Train a pipeline with several buckets."""
    model = make_model()
    plan = Plan(parse("fp8"), pipeline=2, bucket_nbytes=1 << 13, lanes=lanes)
    trained = PipeSGD(model, torch.optim.SGD(model.parameters(), lr=0.05), plan)
    for step in range(6):
        trained.step(partial(loss_of, model, step))
    trained.drain()
    trained.close()
    return weights(model)


def test_a_pipeline_ends_with_the_weights_of_one_lane(run_processes: RunProcesses) -> None:
    one, other = run_processes(2, pipe, 1)
    assert torch.equal(one, other)
    for found in run_processes(2, pipe, 3):
        assert torch.equal(found, one)


def pipe_over_unused(lanes: int) -> torch.Tensor:
    """Train a pipeline in which each parameter is used by one rank in some steps, and by none in others."""
    torch.manual_seed(3)
    layers = torch.nn.ModuleList(torch.nn.Linear(40, 50) for _ in range(4))
    plan = Plan(algorithm="star", pipeline=2, bucket_nbytes=8200, lanes=lanes)
    trained = PipeSGD(layers, torch.optim.SGD(layers.parameters(), lr=0.05, momentum=0.9), plan)
    rank = dist.get_rank()

    def loss(step: int) -> torch.Tensor:
        return layers[(rank + step) % 3](torch.full((2, 40), 0.1 + step)).square().mean()  # type: ignore[no-any-return]

    for step in range(12):
        trained.step(partial(loss, step))
    trained.drain()
    trained.close()
    return torch.cat([each.detach().flatten() for each in layers.parameters()])


def test_ranks_agree_on_unused_parameters_after_all_lanes(run_processes: RunProcesses) -> None:
    wanted = run_processes(2, pipe_over_unused, 1)[0]
    for lanes in (2, 3):
        for found in run_processes(2, pipe_over_unused, lanes):
            assert torch.equal(found, wanted)


def die_in_backward(lanes: int, dead: int) -> tuple[str, float, int]:
    """Let one rank end in backward with buckets in flight; return another rank's error, time, and threads."""
    model = make_model()
    plan = Plan(parse("fp8"), pipeline=2, bucket_nbytes=1 << 13, lanes=lanes)
    trained = PipeSGD(model, torch.optim.SGD(model.parameters(), lr=0.05), plan, timeout_s=20.0)

    def train(steps: int) -> None:
        for step in range(steps):
            trained.step(partial(loss_of, model, step))

    train(4)
    if dist.get_rank() == dead:
        first = next(model.parameters())  # its gradient is the last one
        first.register_hook(lambda _: os._exit(1))  # type: ignore[no-untyped-call]
    began = time.monotonic()
    with pytest.raises(ExchangeError) as caught:
        train(4)
    took_s = time.monotonic() - began
    trained.abort()
    return str(caught.value), took_s, threads()


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_peer_that_dies_in_backward_ends_a_pipeline(run_processes: RunProcesses, lanes: int) -> None:
    for sentence, took_s, left in run_processes(3, die_in_backward, lanes, 2, absent=(2,))[:2]:
        assert "has closed its link" in sentence
        assert took_s < 15.0, "nobody waits for a timeout"
        assert left == 0


def test_a_link_without_a_group_has_one_lane() -> None:
    links = loopback(2)
    lanes = Lanes(SyncContext(Exchange(links[0], Plan())))
    with pytest.raises(ExchangeError, match="rank 0: expected a plan with lanes=1 for a link without a"):
        lanes.follow(Plan(lanes=2))
    for link in links:
        link.close()
