"""A bucket of a sampled step: copied before its exchange, and reduced once more, exactly, if it was drawn."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradwire.auto.samples import Samples, Shadow, lost_shares
from gradwire.costs import ExchangeCost
from gradwire.devices import on_host
from gradwire.exchange import Exchange, Norms
from gradwire.exchange.division import AllReduces
from gradwire.exchange.residual import Residual
from gradwire.plan import Plan


class SampledBucket:
    """Exchanges one bucket as ``inner`` does, and lets ``samples`` have what that takes to judge it.

    Parameters
    ----------
    inner
        The exchange, or what divides the bucket by codecs.
    exchange
        What ``inner`` uses.
    samples
        The step's.
    names, shapes
        The bucket's parameters, in its order.
    drawn
        Whether the bucket is compared with its exact average; the same on all ranks.
    """

    def __init__(
        self,
        inner: AllReduces,
        exchange: Exchange,
        samples: Samples,
        names: Sequence[str],
        shapes: Sequence[Sequence[int]],
        drawn: bool,
    ) -> None:
        self._inner, self._exchange, self._samples = inner, exchange, samples
        self._names, self._shapes, self._drawn = names, [tuple(each) for each in shapes], drawn
        samples.expect(shapes, names)

    def all_reduce(
        self,
        tensor: torch.Tensor,
        average: bool = True,
        residual: torch.Tensor | Residual | None = None,
        norms: Norms | None = None,
        timeout_s: float | None = None,
    ) -> ExchangeCost:
        """Do what ``inner.all_reduce`` does; the cost is that of all exchanges."""
        self._samples.add(tensor)
        own = on_host(tensor).clone() if self._drawn else None
        cost = self._inner.all_reduce(tensor, average, residual, norms, timeout_s)
        if own is not None:
            cost += self._compare(own, on_host(tensor), average, timeout_s)
            cost.nonfinite = min(cost.nonfinite, 1)
        return cost

    def _compare(
        self, own: torch.Tensor, found: torch.Tensor, average: bool, timeout_s: float | None
    ) -> ExchangeCost:
        """Average ``own`` exactly, and with the plan's codec alone if the parameters have several."""
        exact, plain = own.clone(), found
        cost = Exchange(self._exchange.link, Plan()).all_reduce(exact, average, timeout_s=timeout_s)
        if self._inner is not self._exchange:
            plain = own
            cost += self._exchange.all_reduce(plain, average, timeout_s=timeout_s)
        if bool(exact.isfinite().all()):
            planned = self._shares(exact, found)
            self._samples.shadow = Shadow(planned, planned if plain is found else self._shares(exact, plain))
        return cost

    def _shares(self, exact: torch.Tensor, found: torch.Tensor) -> dict[str, float]:
        return dict(zip(self._names, lost_shares(exact, found, self._shapes), strict=True))
