"""DDP in several lanes: checkpoints, ranks that die in backward, and ranks that differ in their lanes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Plan, parse
from gradwire.errors import AttachError, ExchangeError
from support.ddp_ranks import SMALL_BUCKETS, loss_of, make_model, weights
from support.saved_residuals import residuals_in

RunProcesses = Callable[..., list[Any]]
pytestmark = pytest.mark.processes
DEAD = 1
"""The rank that dies."""


def train_in_two_runs(lanes: Sequence[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Train for some steps with each number of lanes, and continue from a checkpoint of the run before.

    Return the weights, and this rank's residuals.
    """
    saved: dict[str, Any] = {}
    for run, number in enumerate(lanes):
        model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        plan = Plan(parse("fp8"), residual=True, lanes=number)
        with gradwire.attach(model, plan) as attached:
            if saved:
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
                attached.load_state_dict(saved["attached"])
            for step in range(4 * run, 4 * run + 4):
                optimizer.zero_grad()
                loss_of(model, step).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            assert len(attached.ledger.summary().buckets) >= 4, "one for each lane"
            saved = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "attached": attached.state_dict(),
            }
    return weights(model), [*residuals_in(saved["attached"]).values()]


@pytest.mark.parametrize("world", [2, 3])
def test_a_checkpoint_continues_with_the_bits_of_one_lane(run_processes: RunProcesses, world: int) -> None:
    wanted = run_processes(world, train_in_two_runs, (1, 1))
    assert all(each.count_nonzero() for _, residuals in wanted for each in residuals)
    for lanes in ((2, 2), (4, 4), (4, 1)):
        found = run_processes(world, train_in_two_runs, lanes)
        for (ours, own_residuals), (one, residuals) in zip(found, wanted, strict=True):
            assert torch.equal(ours, one)
            assert len(own_residuals) == len(residuals)
            assert all(map(torch.equal, own_residuals, residuals))


def die_in_backward(lanes: int) -> tuple[str, float]:
    """Let one rank end in backward with buckets in flight; return the error of another one, and its time."""
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    attached = gradwire.attach(model, Plan(parse("fp8"), lanes=lanes), timeout_s=20.0)
    for step in range(3):
        loss_of(model, step).backward()  # type: ignore[no-untyped-call]
    if dist.get_rank() == DEAD:
        first = next(model.parameters())  # its gradient is the last one
        first.register_hook(lambda _: os._exit(1))  # type: ignore[no-untyped-call]
    began = time.monotonic()
    with pytest.raises(ExchangeError) as caught:
        loss_of(model, 3).backward()  # type: ignore[no-untyped-call]
    took_s = time.monotonic() - began
    attached.close()
    return str(caught.value), took_s


@pytest.mark.parametrize(("world", "lanes"), [(2, 4), (3, 2)])
def test_a_rank_that_dies_in_backward_ends_the_others(
    run_processes: RunProcesses, world: int, lanes: int
) -> None:
    found = run_processes(world, die_in_backward, lanes, absent=(DEAD,))
    for sentence, took_s in (each for rank, each in enumerate(found) if rank != DEAD):
        assert "has closed its link" in sentence
        assert took_s < 15.0, "no rank waits for a timeout"


def attach_with_other_lanes(lanes: Sequence[int]) -> tuple[str, torch.Tensor]:
    """Attach with this rank's number of lanes, then with that of rank 0; return the error, and gradients."""
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    with pytest.raises(AttachError) as caught:
        gradwire.attach(model, Plan(parse("fp8"), lanes=lanes[dist.get_rank()]), timeout_s=20.0)
    with gradwire.attach(model, Plan(parse("fp8"), lanes=lanes[0]), timeout_s=20.0):
        loss_of(model, 0).backward()  # type: ignore[no-untyped-call]
    return str(caught.value), torch.cat(
        [each.grad.flatten() for each in model.parameters() if each.grad is not None]
    )


@pytest.mark.parametrize("lanes", [(4, 2), (2, 2, 1)])
def test_ranks_with_different_numbers_of_lanes_are_refused(
    run_processes: RunProcesses, lanes: tuple[int, ...]
) -> None:
    found = run_processes(len(lanes), attach_with_other_lanes, lanes)
    difference = "4 on rank 0, 2 on rank 1" if len(lanes) == 2 else "2 on ranks 0, 1, 1 on rank 2"
    for rank, (sentence, _) in enumerate(found):
        assert sentence == (
            f"rank {rank}: expected the same settings on all ranks, but lanes is {difference}; use the same "
            "plan and version of gradwire on all ranks"
        )
    assert all(torch.equal(gradients, found[0][1]) for _, gradients in found)
