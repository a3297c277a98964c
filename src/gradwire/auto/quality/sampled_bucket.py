"""A bucket of a sampled step: copied before its exchange, and if it was drawn, a part is reduced exactly."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from random import Random

import torch

from gradwire.auto.quality.samples import Samples, Shadow, lost_shares
from gradwire.costs import ExchangeCost
from gradwire.devices import on_host
from gradwire.exchange import Exchange, Norms
from gradwire.exchange.division import AllReduces, placement_of
from gradwire.exchange.residual import Residual
from gradwire.plan import Plan

COMPARED = 1 << 18
"""At most so many floats of a drawn bucket are compared with their exact average, which costs their bytes."""
FEWEST = 1 << 13
"""So many, or an eighth, are compared of a bucket that has no more than eight times ``COMPARED``."""


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
        Whether the bucket is compared with its exact average; the same on all ranks. Of a large one these
        are the parameters from one on that is drawn by the number of the step.
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
        if not self._drawn:
            return self._inner.all_reduce(tensor, average, residual, norms, timeout_s)
        compared, floats = self._part()
        own = on_host(tensor)[floats].clone()
        cost = self._inner.all_reduce(tensor, average, residual, norms, timeout_s)
        cost += self._compare(own, on_host(tensor)[floats], compared, average, timeout_s)
        cost.nonfinite = min(cost.nonfinite, 1)
        return cost

    def _part(self) -> tuple[slice, slice]:
        """Return the parameters that are compared, and their floats: the same on all ranks.

        Whole ones, or rows of a large one, or of rows that are larger a part.
        """
        starts = list(accumulate(map(math.prod, self._shapes), initial=0))
        count = min(COMPARED, max(FEWEST, starts[-1] // 8))
        last = next(i for i, start in enumerate(starts) if starts[-1] - start <= count)
        draw = Random(f"part {self._samples.step}")
        first = draw.randrange(min(last + 1, len(self._shapes)))
        begin, end = starts[first], starts[first + 1]
        if end - begin > count:
            row = math.prod(self._shapes[first][1:])
            apart = row if row <= count else 1
            begin += apart * draw.randrange((end - begin - count) // apart + 1)
            return slice(first, first + 1), slice(begin, begin + count)
        after = max(bisect_right(starts, begin + count) - 1, first + 1)
        return slice(first, after), slice(begin, starts[after])

    def _compare(
        self,
        own: torch.Tensor,
        found: torch.Tensor,
        compared: slice,
        average: bool,
        timeout_s: float | None,
    ) -> ExchangeCost:
        """Average ``own`` exactly, and with the plan's codec alone if the parameters have several."""
        exact, plain = own.clone(), found
        cost = Exchange(self._exchange.link, Plan()).all_reduce(exact, average, timeout_s=timeout_s)
        names, shapes = self._names[compared], self._shapes[compared]
        plan = self._exchange.plan
        if plan.codecs:
            counts = [*map(math.prod, shapes)] if len(shapes) > 1 else [own.numel()]
            bucket = [*map(math.prod, self._shapes)]
            placement = placement_of(self._exchange, plan.encoding, counts, bucket)
            values = placement.joined(torch.split(own, counts))
            cost += self._exchange.all_reduce(values, average, timeout_s=timeout_s)
            plain = torch.cat(placement.apart(values))
        if bool(exact.isfinite().all()):
            planned, plainly = (
                dict(zip(names, lost_shares(exact, each, shapes), strict=True)) for each in (found, plain)
            )
            self._samples.shadow = Shadow(planned, plainly)
        return cost
