"""What the processes of the tests of an automatic choice run."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
from support.ddp_ranks import SMALL_BUCKETS, loss_of, make_model, weights
from support.told_line import WARM_UP, telling, unpaced

STEPS = WARM_UP + 3


def chosen(path: str) -> dict[str, Any]:
    """Train with a choice of its own; then replay what was decided as fixed plans."""
    with unpaced():
        settings = gradwire.Auto(path=path)
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    with gradwire.attach(model, settings) as attached:
        _train(model, range(1, STEPS + 1))
        decisions = attached.decisions
        plans, shown = [attached.plan], repr(attached)
    again = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    with gradwire.attach(again, settings) as attached:  # starts with the plan that was saved
        _train(again, range(1, 3))
        plans.append(attached.plan)
    return {
        "weights": weights(model),
        "again": weights(again),
        "decisions": [(step, each.to_json()) for step, each in decisions],
        "plans": plans,
        "repr": shown,
    }


def halved() -> dict[str, Any]:
    """Train with a choice of its own, in one piece, and with a checkpoint in the middle."""
    with unpaced():
        settings = gradwire.Auto(codecs=["quantize:8"])
    slow = (1e-4, 1e5, 0.0, 1.0)  # so that it compresses
    with unpaced(), telling(slow):
        return _halved(settings)


def _halved(settings: gradwire.Auto) -> dict[str, Any]:
    options = {**SMALL_BUCKETS, "find_unused_parameters": True}  # the buckets stay what they are
    one, other = (DistributedDataParallel(make_model(), **options) for _ in range(2))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (one, other)]
    with gradwire.attach(one, settings) as attached:
        _train(one, range(1, STEPS + 1), optimizers[0])
        state = copy.deepcopy([each.state_dict() for each in (one, optimizers[0], attached)])
        middle = weights(one)
        _train(one, range(STEPS + 1, STEPS + 6), optimizers[0])
        decisions = attached.decisions
    ledger = gradwire.Ledger(torch.distributed.get_rank())
    with gradwire.attach(other, settings, ledger=ledger) as attached:
        other.load_state_dict(state[0])
        optimizers[1].load_state_dict(state[1])
        attached.load_state_dict(state[2])
        _train(other, range(STEPS + 1, STEPS + 6), optimizers[1])
        again, plan = attached.decisions, attached.plan
    return {
        "whole": weights(one),
        "resumed": weights(other),
        "middle": middle,
        "plan": plan,
        "decisions": [[(step, each.to_json()) for step, each in found] for found in (decisions, again)],
        "told": ledger.summary().decided,
    }


def differing(rank_with: int) -> str:
    """Ask for an automatic choice on one rank alone; return what that gave."""
    rank = torch.distributed.get_rank()
    model = DistributedDataParallel(make_model())
    try:
        gradwire.attach(model, "auto" if rank == rank_with else "fp8")
    except gradwire.errors.AttachError as error:
        return str(error)
    return ""


def _train(
    model: DistributedDataParallel, steps: range, optimizer: torch.optim.Optimizer | None = None
) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
