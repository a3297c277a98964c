"""A peer that dies in one of FSDP2's collectives: one sentence, every link closed, and the shards stay."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire.errors import ExchangeError
from support.sharded import Case, loss_of, make_model, shard

RunProcesses = Callable[..., list[Any]]
WORLD = 3
DEAD = 1
REMEDY = "save model.state_dict(), which contains the shards, and restart all ranks"
CASES = {  # each has its collective first after the death
    "all-gather of the weights": Case(),
    "reduce-scatter of the gradients": Case(reshard_after_forward=False),
    "all-reduce of the gradients between replicas": Case(mesh=(WORLD, 1)),
}


@dataclass(frozen=True)
class Death:
    """The errors of a rank whose peer has died, and what is left.

    Attributes
    ----------
    first, second
        The error of the step in which the peer died, with its notes, and that of the next exchange.
    seconds
        The time to the first error.
    are_closed
        Whether all links are of no further use.
    is_intact
        Whether the shards are those of the last complete step.
    """

    first: str
    second: str
    seconds: float
    are_closed: bool
    is_intact: bool


def until_one_dies(purpose: str) -> Death:
    model = make_model()
    shard(model, CASES[purpose])
    attached = gradwire.attach_fsdp(model, "errbound:2^-10", timeout_s=5.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model, dist.get_rank(), 0).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    state = model.state_dict()
    kept = {name: each.to_local().clone() for name, each in state.items()}
    loss = None if "gather" in purpose else loss_of(model, dist.get_rank(), 1)
    dist.barrier()
    if dist.get_rank() == DEAD:
        os._exit(1)
    began = time.monotonic()
    with pytest.raises(ExchangeError) as caught:
        (loss_of(model, dist.get_rank(), 1) if loss is None else loss).backward()  # type: ignore[no-untyped-call]
    seconds = time.monotonic() - began
    with pytest.raises(ExchangeError) as again:
        attached._sync.check()
    return Death(
        "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])]),
        str(again.value),
        seconds,
        all(each.is_over for each in attached._sync.context.siblings),
        all(torch.equal(kept[name], each.to_local()) for name, each in model.state_dict().items()),
    )


def until_one_dies_before_an_agreement() -> list[str]:
    model = make_model()
    shard(model, Case())
    attached = gradwire.attach_fsdp(model, "fp8", timeout_s=5.0, strict=True)
    dist.barrier()
    if dist.get_rank() == DEAD:
        os._exit(1)
    with pytest.raises(ExchangeError) as caught:
        attached._sync.exchange_now("the verdict", lambda exchange: exchange.all_reduce(torch.ones(WORLD)))
    assert all(each.is_over for each in attached._sync.context.siblings)
    return [str(caught.value), *caught.value.__notes__]


@pytest.mark.processes
def test_a_peer_that_dies_before_an_agreement_is_an_error_with_the_remedy(
    run_processes: RunProcesses,
) -> None:
    results = run_processes(WORLD, until_one_dies_before_an_agreement, absent=(DEAD,))
    left = [rank for rank in range(WORLD) if rank != DEAD]
    assert any(f"rank {DEAD}" in results[rank][0] for rank in left)
    for rank in left:
        assert (
            f"while the communication thread exchanged the verdict before step 1; {REMEDY}" in results[rank]
        )


@pytest.mark.processes
@pytest.mark.parametrize("purpose", CASES)
def test_a_peer_that_dies_is_one_sentence_that_names_it_and_shards_stay(
    purpose: str, run_processes: RunProcesses
) -> None:
    results = run_processes(WORLD, until_one_dies, purpose, absent=(DEAD,))
    left = [rank for rank in range(WORLD) if rank != DEAD]
    assert any(f"rank {DEAD}" in results[rank].first for rank in left)
    for rank in left:
        found = results[rank]
        assert f"rank {rank} " in found.first
        note = rf"^in the {purpose} \((0|2|root)\.\w+\); {re.escape(REMEDY)}$"
        assert re.search(note, found.first, re.MULTILINE)
        assert found.second.startswith(f"rank {rank}: this model's exchange failed earlier (")
        assert found.second.endswith(f"; {REMEDY}")
        assert found.seconds < 20
        assert found.are_closed
        assert found.is_intact
