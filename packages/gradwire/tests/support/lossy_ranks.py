"""What the processes of the tests of lost gradients run; apart from them, since a process finds it here."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Ledger
from gradwire.errors import AttachError, LossyError, LossyWarning
from support import sharded
from support.ddp_ranks import SMALL_BUCKETS, batch, loss_of, make_model, weights
from support.ledgers import Kept

BIG = 1e4
"""So much larger is rank 0's loss than that of the others, whose gradients an absolute bound kills."""


def trained_alike(plan: Any, steps: int, strict: bool = False) -> dict[str, Any]:
    """Train with gradients of one size on all ranks."""
    return trained(plan, steps, strict, big=1.0)


def trained(plan: Any, steps: int, strict: bool = False, spoilt: int = 0, big: float = BIG) -> dict[str, Any]:
    """Train, also after an error; return warnings, errors and shares by step, and weights about the error.

    In step ``spoilt``, which nobody applies, the loss is not finite on rank 1.
    """
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    sink = Kept()
    ledger = Ledger(dist.get_rank(), [sink])
    attached = gradwire.attach(model, plan, strict=strict, ledger=ledger)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    errors: dict[int, str] = {}
    kept_weights = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            before = weights(model)
            factor = float("inf") if step == spoilt and dist.get_rank() else 1.0
            loss = loss_of(model, step) * (big if dist.get_rank() == 0 else factor)
            try:
                loss.backward()  # type: ignore[no-untyped-call]
            except LossyError as error:
                errors[step] = str(error)
                kept_weights = kept_weights and torch.equal(before, weights(model))
                continue
            if step != spoilt:
                optimizer.step()
    with torch.no_grad():
        model(batch(0))
    summary = str(ledger.summary())
    attached.close()
    return {
        "warnings": [str(each.message) for each in caught if each.category is LossyWarning],
        "errors": errors,
        "kept": kept_weights,
        "steps": ledger.summary().steps,
        "summary": summary,
        "shares": {each.step: dict(each.lost.parameters) for each in sink.steps if each.lost},
        "weights": weights(model),
    }


def warned_as_an_error() -> dict[str, Any]:
    """Train where a warning is an error, and on."""
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    attached = gradwire.attach(model, "errbound:2^-2")
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(1, 11):
            model.zero_grad()
            try:
                loss_of(model, step).backward()  # type: ignore[no-untyped-call]
            except LossyWarning:
                found.append(step)
    attached.close()
    return {"steps": found, "ended": attached.ledger.summary().steps}


def differently_strict() -> str:
    model = DistributedDataParallel(make_model())
    try:
        gradwire.attach(model, "quantize:8", strict=dist.get_rank() == 0)
    except AttachError as error:
        return str(error)
    return ""


def first_shares(spec: str) -> dict[str, Any]:
    """Return the gradients of step 2 on this rank, and the shares that were measured, in a star."""
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    sink = Kept()
    plan = gradwire.Plan(gradwire.parse(spec), "star")
    attached = gradwire.attach(model, plan, ledger=Ledger(dist.get_rank(), [sink]))
    for step in (1, 2):
        model.zero_grad()
        loss_of(model, step).backward()  # type: ignore[no-untyped-call]
    twin = make_model()
    loss_of(twin, 2).backward()  # type: ignore[no-untyped-call]
    own = {name: each.grad for name, each in twin.named_parameters()}
    attached.close()
    (measured,) = [each for each in sink.steps if each.lost]
    return {"own": own, "shares": dict(measured.lost.parameters), "step": measured.step}


def with_shards(plan: Any, steps: int, mesh: tuple[int, ...], strict: bool = False) -> dict[str, Any]:
    """Take steps with FSDP2 where rank 0's loss is large; return what was seen, and the own gradients."""
    model = sharded.make_model()
    sharded.shard(model, sharded.Case(mesh=mesh))
    sink = Kept()
    errors: dict[int, str] = {}
    ledger = Ledger(dist.get_rank(), [sink])
    factor = BIG if dist.get_rank() == 0 else 1.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with gradwire.attach_fsdp(model, plan, ledger=ledger, strict=strict):
            for step in range(1, steps + 1):
                try:
                    (sharded.loss_of(model, dist.get_rank(), 1) * factor).backward()  # type: ignore[no-untyped-call]
                except LossyError as error:
                    errors[step] = str(error)
                model.zero_grad()
    twin = sharded.make_model()
    (sharded.loss_of(twin, dist.get_rank(), 1) * factor).backward()  # type: ignore[no-untyped-call]
    return {
        "warnings": [str(each.message) for each in caught if each.category is LossyWarning],
        "errors": errors,
        "steps": ledger.summary().steps,
        "summary": ledger.summary(),
        "shares": {each.step: dict(each.lost.parameters) for each in sink.steps if each.lost},
        "own": {name: each.grad for name, each in twin.named_parameters()},
    }
