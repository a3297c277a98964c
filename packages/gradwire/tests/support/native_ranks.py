"""Training in which the transport may average buckets by its own all-reduce, in the processes of a test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.autotune.settings import BUCKETS
from gradwire.ddp import attach
from gradwire.exchange import Exchange
from gradwire.exchange.backend import NativeAllReduce
from gradwire.exchange.request import BucketRequest
from support.ddp_ranks import SMALL_BUCKETS, make_model, train


def trained(options: dict[str, Any], plan: Any, steps: int) -> dict[str, Any]:
    """Train as DDP does; return the buckets of the native all-reduce, and the counts."""
    past = list[int]()
    start = Exchange.start

    def noted(self: Exchange, tensor: torch.Tensor, request: BucketRequest) -> NativeAllReduce | None:
        found = start(self, tensor, request)
        if found is not None:
            past.append(tensor.numel())
        return found

    Exchange.start = noted  # type: ignore[method-assign]  # in a process of its own
    model = DistributedDataParallel(make_model(), **SMALL_BUCKETS, **options)
    attached = gradwire.attach(model, plan)
    ours = train(model, range(steps))
    summary = attached.ledger.summary()
    attached.close()
    plain = train(DistributedDataParallel(make_model(), **SMALL_BUCKETS, **options), range(steps))
    calls = sum(each.exchanges for each in summary.buckets.values())
    return {
        "plain": plain,
        "ours": ours,
        "steps": summary.steps,
        "past": past,
        "buckets": len(summary.buckets),
        "exchanges": calls,
        "ratio": summary.total.cost.ratio,
        "bypasses": len(summary.bypasses),
    }


def chosen(settings: gradwire.Auto, steps: int) -> dict[str, Any]:
    """Train with a choice of nothing but the transport's own all-reduce, whichever is faster here."""
    with patch.object(attach, "BUCKETS", replace(BUCKETS, algorithms=("backend",))):
        return trained({}, settings, steps)
