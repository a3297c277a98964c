"""Buckets as DDP hands them to its hook, made by hand, and what averages them without DDP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from gradwire.ddp.reducer import BucketReducer
from gradwire.exchange import Exchange
from gradwire.sync.bucket.observe import StepObserver
from gradwire.sync.bucket.residual import Residuals
from gradwire.sync.context import SyncContext, SyncOptions
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.layout import Layouts
from gradwire.sync.ledger.ledger import Ledger


@dataclass
class FakeBucket:
    """Says what a ``GradBucket`` says; without ``owners`` the gradients are one parameter's."""

    number: int
    gradients: torch.Tensor
    last: bool = False
    owners: list[torch.Tensor] = field(default_factory=list)

    def index(self) -> int:
        return self.number

    def buffer(self) -> torch.Tensor:
        return self.gradients

    def is_last(self) -> bool:
        return self.last

    def parameters(self) -> list[torch.Tensor]:
        return self.owners or [self.gradients]


def sync_over(
    exchange: Exchange,
    names: Mapping[torch.Tensor, str] | None = None,
    begin_timeout_s: float | None = None,
    observers: tuple[StepObserver, ...] = (),
) -> GradientSync:
    """Return what averages the gradients of parameters of these names over an exchange."""
    link = exchange.link
    options = SyncOptions(link.timeout_s, begin_timeout_s)
    context = SyncContext(exchange, options, Ledger(link.rank))
    residuals = Residuals(exchange.plan, link.rank, link.world)
    return GradientSync(context, Layouts([*(names or {}).values()]), residuals, observers)


def reducer_over(
    exchange: Exchange, names: Mapping[torch.Tensor, str] | None = None, begin_timeout_s: float | None = None
) -> tuple[BucketReducer, GradientSync]:
    """Return what takes DDP's buckets for ``sync_over``, and that."""
    sync = sync_over(exchange, names, begin_timeout_s)
    return BucketReducer(sync, names or {}), sync
