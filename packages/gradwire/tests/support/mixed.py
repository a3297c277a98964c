"""Plans with several codecs: what two ranks' averages are then, and what processes do with such plans.

The average is told value by value, whatever the chunks: exactly, and with ``bf16`` on every hop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import AttachError, SpecError
from support.ddp_ranks import SMALL_BUCKETS, loss_of, make_model, train

RunProcesses = Callable[..., list[Any]]

BIASES_EXACT = gradwire.Plan.of("bf16", codecs=[{"match": "bias$", "codec": "identity"}])


def exact_mean(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + y) / 2


def is_bf16_mean(found: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether one of the two was rounded and sent, and the sum rounded once more; the owner may be either."""
    either = [_rounded(_rounded(a) + b) / 2 for a, b in ((x, y), (y, x))]
    return bool(((found == either[0]) | (found == either[1])).all())


def _rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def first_averages() -> dict[str, Any]:
    """Take the first step through DDP with a plan of two codecs, and some more; try wrong plans, too."""
    alone = make_model()
    loss_of(alone, 0).backward()  # type: ignore[no-untyped-call]
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS)
    wrong = gradwire.Plan(codecs=[{"match": "embedding", "codec": "fp8"}])
    found: dict[str, Any] = {"refused": _refused(model, wrong)}
    match = ["bias$", "weight$"][dist.get_rank()]
    found["differ"] = _refused(model, gradwire.Plan(codecs=[{"match": match, "codec": "fp8"}]))
    with gradwire.attach(model, BIASES_EXACT) as attached:
        loss_of(model, 0).backward()  # type: ignore[no-untyped-call]
        found |= {"own": _gradients(alone), "averages": _gradients(model.module), "plan": attached.plan}
        found["weights"] = train(model, range(3))
    return found


def _refused(model: DistributedDataParallel, plan: gradwire.Plan) -> str:
    try:
        gradwire.attach(model, plan)
    except (AttachError, SpecError) as error:
        return str(error)
    return ""


def _gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
