"""Ranks that have run out of batches, under DDP's ``join``: how many still take part in a step.

A rank that has joined answers the others' collectives with zeros, and
``join(divide_by_initial_world_size=False)`` divides by the number of the others. DDP keeps that number from
its hooks, so the ranks count themselves.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.costs import ExchangeCost
from gradwire.errors import AttachError
from gradwire.exchange import Exchange
from gradwire.plan import Plan

_SHADOWS = getattr(DistributedDataParallel, "_match_all_reduce_for_bwd_pass", None)
"""Where DDP calls the hook for a rank that has joined."""


def divides_by_active(model: nn.Module) -> bool:
    """Return whether a model is to divide its gradients by the ranks that still have batches.

    The same on all ranks. DDP does so for the first model of a ``Join`` alone.
    """
    config = getattr(model, "_join_config", None)
    joins = getattr(config, "enable", False) and getattr(config, "is_first_joinable", False)
    return joins and not getattr(model, "_divide_by_initial_world_size", True)


def has_joined() -> bool:
    """Return whether DDP calls the hook for a rank that has joined; ``AttachError`` if torch hides it."""
    if _SHADOWS is None:
        raise AttachError(
            f"gradwire cannot tell who has joined with torch {torch.__version__}; leave "
            "divide_by_initial_world_size=False out of join, which divides by all ranks then"
        )
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code is not _SHADOWS.__code__:
        frame = frame.f_back
    return frame.f_code is _SHADOWS.__code__


class ActiveCount:
    """The count of one step, work for the communication thread; all ranks do it at the same place.

    It waits ``timeout_s`` for a rank that has not come to the step. ``active`` is how many ranks have not
    joined, once it was called.
    """

    def __init__(self, exchange: Exchange, timeout_s: float) -> None:
        self.active = 0
        self._link, self._timeout_s, self._joined = exchange.link, timeout_s, has_joined()

    def __call__(self) -> ExchangeCost:
        """Count. Raises ``ExchangeError``."""
        active = torch.tensor([0.0 if self._joined else 1.0], dtype=torch.float32, device="cpu")
        accounting = Exchange(self._link, Plan()).all_reduce(active, average=False, timeout_s=self._timeout_s)
        self.active = max(int(active.item()), 1)
        return accounting
