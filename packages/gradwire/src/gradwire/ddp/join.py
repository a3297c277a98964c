"""The number of ranks that still have batches under DDP's ``join``.

A rank that has joined takes part in the others' collectives with zeros, and
``join(divide_by_initial_world_size=False)`` divides by the number of the other ranks. DDP does not pass that
number to hooks, so the ranks count it.
"""

from __future__ import annotations

import sys
from time import perf_counter

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.costs import ExchangeCost
from gradwire.errors import AttachError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.gradient_sync import GradientSync

_SHADOWS = getattr(DistributedDataParallel, "_match_all_reduce_for_bwd_pass", None)
"""DDP's function that calls the hook for a rank that has joined."""


def joins(model: nn.Module) -> bool:
    """Return whether a model is within a ``join`` context."""
    return bool(getattr(getattr(model, "_join_config", None), "enable", False))


def divides_by_active(model: nn.Module) -> bool:
    """Return whether a model divides its gradients by the number of ranks that still have batches.

    The result is the same on all ranks. DDP does so only for the first model of a ``Join``.
    """
    is_first = getattr(getattr(model, "_join_config", None), "is_first_joinable", False)
    return joins(model) and is_first and not getattr(model, "_divide_by_initial_world_size", True)


def has_joined() -> bool:
    """Return whether DDP calls the hook for a rank that has joined. Raises ``AttachError`` if unknown."""
    if _SHADOWS is None:
        raise AttachError(
            f"gradwire cannot detect joined ranks with torch {torch.__version__}; omit "
            "divide_by_initial_world_size=False from join, which then divides by all ranks"
        )
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code is not _SHADOWS.__code__:
        frame = frame.f_back
    return frame.f_code is _SHADOWS.__code__


def count_active(sync: GradientSync) -> int:
    """Wait until all ranks have begun the step, and return the number of ranks that have not joined.

    All ranks call this at the same place. The ledger counts the exchange. Raises ``ExchangeError``.
    """
    began = perf_counter()
    active = torch.tensor([float(not has_joined())], dtype=torch.float32, device="cpu")

    def count(exchange: Exchange) -> ExchangeCost:
        timeout_s = sync.context.begin_timeout_s
        return Exchange(exchange.link, Plan()).all_reduce(active, average=False, timeout_s=timeout_s)

    cost = sync.exchange_now("the count of ranks with batches, under join,", count)
    sync.context.count("join", cost, perf_counter() - began)
    return max(int(active.item()), 1)
