"""Copy a bucket before and after its exchange, and compare the exchange with an exact exchange if drawn."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING

import torch

from gradwire.autotune.samples import Reference, Samples, Shadow, Shapes
from gradwire.collectives import ring
from gradwire.costs import ExchangeCost
from gradwire.devices import on_host
from gradwire.exchange import Exchange
from gradwire.exchange.request import BucketRequest, Half
from gradwire.exchange.views import ParameterViews
from gradwire.plan import Plan
from gradwire.sync.bucket.observe import BucketObserver
from gradwire.sync.flat.gradients import Bucket, cut

if TYPE_CHECKING:
    from gradwire.sync.bucket.work import BucketWork


class BucketSampler(BucketObserver):
    """The observer of one bucket in a sampled step, whose result is compared with an exact result if drawn.

    ``shapes`` are those of the model's parameters. A large bucket is sampled in parts of ``part_nbytes``, if
    given, as if each part were a bucket. If ``drawn``, which is the same on all ranks, the bucket's average
    or this rank's chunk of its sum is compared; for a large average, the step number draws the compared part.
    """

    wants_alone = True

    def __init__(
        self,
        samples: Samples,
        work: BucketWork,
        shapes: Mapping[str, Sequence[int]],
        *,
        drawn: bool = False,
        part_nbytes: int | None = None,
    ) -> None:
        assert work.layout is not None, "a front end must name the parameters of a run that chooses its plan"
        self._samples, self._work, self._layout, self._drawn = samples, work, work.layout, drawn
        pairs = zip(work.layout.names, work.layout.counts, strict=True)
        self._shapes = [_shape_of(count, shapes.get(name, ())) for name, count in pairs]
        copies = work.layout.copies
        whole = [(copies * shape[0], *shape[1:]) for shape in self._shapes]
        self._sampled = list[tuple[int, Bucket]]()
        for part in cut([math.prod(shape) for shape in whole], part_nbytes):
            members = slice(part.parameters.start, part.parameters.stop)
            self._sampled.append((samples.expect(whole[members], work.layout.names[members]), part))
        self._compared, self._floats, self._own = slice(None), slice(None), torch.empty(0)

    def before(self, values: torch.Tensor) -> None:
        """Copy this rank's values before the exchange."""
        layout, copies = self._layout, self._layout.copies
        laid = values
        if copies > 1:  # a shard of each parameter for every rank
            parts = torch.split(values.view(copies, -1), [*layout.counts], 1)
            laid = torch.cat([part.reshape(-1) for part in parts])
        for index, part in self._sampled:
            self._samples.store(index, part.view(laid))
        if self._drawn:
            if self._work.request.half is Half.ALL_REDUCE:
                self._compared, self._floats = self._part()
            self._own = on_host(values)[self._floats].clone()

    def after(self, values: torch.Tensor, exchange: Exchange) -> ExchangeCost:
        """Copy the sums, and compare them with the exact sums if drawn; return the comparison's cost."""
        request = self._work.request
        is_whole = request.half is Half.ALL_REDUCE
        if is_whole and self._layout.copies == 1:
            factor = exchange.link.world if request.average else 1
            for index, part in self._sampled:
                self._samples.store_sums(index, part.view(values), factor)
        if not self._drawn:
            return ExchangeCost()
        found = on_host(values)[self._floats]
        compare = self._compare if is_whole else self._compare_chunk
        return compare(found, exchange)

    def _part(self) -> tuple[slice, slice]:
        """Return the slices of the compared parameters and of their floats, the same on all ranks.

        The slices cover whole parameters, or rows of one large parameter, or part of its values if rows are
        large.
        """
        starts = list(accumulate(map(math.prod, self._shapes), initial=0))
        config = self._samples.config
        count = min(config.compared_count, max(config.least_compared_count, starts[-1] // 8))
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

    def _compare(self, found: torch.Tensor, exchange: Exchange) -> ExchangeCost:
        """Store the relative errors of the average: as planned, and with the plan's main codec alone."""
        own, request = self._own, self._work.request
        exact, plain = own.clone(), found
        alone = BucketRequest(average=request.average, timeout_s=request.timeout_s)
        link, plan = exchange.link, exchange.plan
        cost = Exchange(link, Plan()).run(exact, alone)
        names, shapes = self._layout.names[self._compared], self._shapes[self._compared]
        if plan.codecs:
            counts = [*map(math.prod, shapes)] if len(shapes) > 1 else [own.numel()]
            bucket, codecs = [*map(math.prod, self._shapes)], [plan.encoding] * len(counts)
            views, plain = ParameterViews.of(plan, link.world, counts, codecs, bucket), own
            cost += exchange.run(plain, replace(alone, views=views))
        if bool(exact.isfinite().all()):
            self._samples.shadow = Shadow(
                *(self._shares(exact, each, names, shapes) for each in (found, plain))
            )
        return cost

    def _compare_chunk(self, found: torch.Tensor, exchange: Exchange) -> ExchangeCost:
        """Sum the bucket exactly, and store the relative errors of this rank's chunk of the ring's sum."""
        link = exchange.link
        cost = Exchange(link, Plan()).reduce(self._own)
        place = [ring.owner(chunk, link.world) for chunk in range(link.world)].index(link.rank)
        exact, chunk = self._own.chunk(link.world)[place], found.chunk(link.world)[place]
        if bool(exact.isfinite().all()):
            shares = self._shares(exact, chunk, self._layout.names, self._shapes)
            self._samples.shadow = Shadow(shares, shares)
        return cost

    def _shares(
        self, exact: torch.Tensor, found: torch.Tensor, names: Sequence[str], shapes: Shapes
    ) -> dict[str, float]:
        shares = Reference(exact, shapes, config=self._samples.config).lost_shares(found)
        return dict(zip(names, shares, strict=True))


def _shape_of(count: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of ``count`` floats of a parameter: whole rows if possible, else a single row."""
    row = math.prod(shape[1:])
    is_rows = len(shape) > 0 and row > 0 and count % row == 0
    return (count // row, *shape[1:]) if is_rows else (count,)
