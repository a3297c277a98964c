"""Which parameters lie where in the buckets that DDP cuts, and what exchanges a bucket."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gradwire.exchange import Exchange
from gradwire.exchange.division import AllReduces, divided
from gradwire.training.ddp.grad_bucket import DDPBucket
from gradwire.training.gradients.floats import float_count
from gradwire.training.ledger.shares import Layout


class BucketLayouts:
    """Knows the buckets of one model, whose parameters have ``names``; ``exchange`` exchanges them."""

    def __init__(self, exchange: Exchange, names: Mapping[torch.Tensor, str]) -> None:
        self._exchange, self._names = exchange, names
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._plan = exchange.plan
        self._divisions: dict[Layout, AllReduces] = {}

    def of(self, bucket: DDPBucket) -> Layout:
        """Return the layout of a bucket."""
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key in self._layouts:
            return self._layouts[key]
        other = f"a parameter of bucket {bucket.index()}"
        names = tuple(self._names.get(each, other) for each in parameters)
        counts = tuple(float_count(each) for each in parameters)
        layout = Layout(names, counts, (frozenset(names),) * len(names))
        if other not in names:  # else nobody keeps it, and another parameter may come to its place
            self._layouts[key] = layout
        return layout

    def divided(self, bucket: DDPBucket) -> AllReduces:
        """Return what exchanges a bucket with the codecs that the present plan has for its parameters."""
        if self._plan is not self._exchange.plan:
            self._plan, self._divisions = self._exchange.plan, {}
        layout = self.of(bucket)
        if layout not in self._divisions:
            self._divisions[layout] = divided(self._exchange, layout.names, layout.counts)
        return self._divisions[layout]
