"""The positions of a model's parameters in its buckets, by names that all ranks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.exchange.views import ParameterViews, views_of
from gradwire.plan import Plan
from gradwire.sync.ledger.lost import Layout


class Layouts:
    """The names of a model's parameters, and the views of its buckets under the plan in use.

    Attributes
    ----------
    names
        All parameters that may have a gradient, in an order that all ranks share.
    counts
        The number of floats of each parameter that may have a residual by name; None if unknown.
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
