"""The positions of a model's parameters in its buckets, by names that all ranks share."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from gradwire.exchange import Norms
from gradwire.exchange.views import ParameterViews, views_of
from gradwire.plan import Plan


@dataclass(frozen=True)
class Layout:
    """The layout of parameters in a bucket."""

    names: tuple[str, ...]
    counts: tuple[int, ...]  # the number of floats in each parameter
    groups: tuple[Hashable, ...]  # all parameters of a group share one warning
    copies: int = 1  # a bucket of FSDP has a shard of every parameter for each rank

    @classmethod
    def of_bucket(cls, names: tuple[str, ...], counts: tuple[int, ...]) -> Layout:
        """Return the layout of a bucket whose parameters share one warning."""
        return cls(names, counts, (frozenset(names),) * len(names))

    @cached_property
    def norms(self) -> Norms:
        """The norms that an exchange of the bucket measures, valid until the bucket's next exchange."""
        return Norms([0, *accumulate(self.counts * self.copies)])


class Layouts:
    """The names of a model's parameters, and the views of its buckets under the plan in use.

    ``names`` are all parameters that may have a gradient, in an order that all ranks share. ``counts`` has
    the number of floats of every parameter that may have a residual; None if unknown.
    """

    def __init__(self, names: Sequence[str], counts: Mapping[str, int] | None = None) -> None:
        self.names, self.counts = list(names), counts
        self._plan: Plan | None = None
        self._views: dict[Layout, ParameterViews | None] = {}

    def views(self, layout: Layout, plan: Plan, world: int) -> ParameterViews | None:
        """Return the views of a bucket's parameters with their codecs, or None if the plan has one codec."""
        if self._plan is not plan:
            self._plan, self._views = plan, {}
        if layout not in self._views:
            self._views[layout] = views_of(plan, world, layout.names, layout.counts)
        return self._views[layout]
