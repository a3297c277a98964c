"""Samples of a rank's own gradient, and what codecs and exchanges lose of it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from random import Random

import torch

from gradwire.autotune.config import DEFAULT, AutoConfig
from gradwire.codecs import Codec
from gradwire.costs import ExchangeCost
from gradwire.devices import on_host
from gradwire.exchange import Exchange
from gradwire.exchange.request import BucketRequest, Reducer
from gradwire.exchange.views import ParameterViews
from gradwire.plan import Plan


@dataclass
class Samples:
    """One step's buckets of a rank, before any average; of a large bucket its beginning.

    Attributes
    ----------
    counts
        The floats of each bucket, all of them.
    names, sizes
        The parameters, in the order of the buckets, and their floats.
    drawn
        The number of the bucket, from 0 up, whose exchange is to be compared with the exact average.
    step
        Which step it is; of a large bucket it says which part is compared.
    shadow
        What that comparison has found.
    placed_for
        How many ranks exchange parameters that begin blocks of their own; None where they lie side by side.
    config
        The thresholds of the run.
    """

    counts: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    drawn: int | None = None
    step: int = 0
    shadow: Shadow | None = None
    placed_for: int | None = None
    config: AutoConfig = DEFAULT
    _shapes: list[list[tuple[int, ...]]] = field(default_factory=list)
    _values: list[torch.Tensor] = field(default_factory=list)
    _mean_norms: Sequence[torch.Tensor | None] = ()
    _known: dict[Codec, list[float]] = field(default_factory=dict)

    def anew(self) -> Samples:
        """Return empty samples of the same step, which is retried."""
        return Samples(drawn=self.drawn, step=self.step, placed_for=self.placed_for, config=self.config)

    def expect(self, shapes: Sequence[Sequence[int]], names: Sequence[str]) -> None:
        """Note the shapes and names of the next bucket's parameters, in the bucket's order."""
        self._shapes.append([tuple(each) for each in shapes])
        self.names += names
        self.sizes += map(math.prod, shapes)
        self.counts.append(sum(map(math.prod, shapes)))

    def add(self, values: torch.Tensor) -> None:
        """Copy the next bucket's values, float32, to the host."""
        self._known.clear()
        self._values.append(values.detach()[: self.config.sample_count].to("cpu", copy=True))

    @property
    def finite(self) -> bool:
        """Whether codecs can be measured on them."""
        return bool(self.counts) and all(bool(each.isfinite().all()) for each in self._values)

    @property
    def size_of(self) -> dict[str, int]:
        """The floats of each parameter, by its name."""
        return dict(zip(self.names, self.sizes, strict=True))

    def part(self, names: Collection[str]) -> float:
        """Return the share of all values that these parameters have."""
        return part_of(names, self.size_of)

    @property
    def flat(self) -> torch.Tensor:
        """All values that were kept, one bucket after the other."""
        return torch.cat(self._values)

    def slice_norms(self) -> torch.Tensor:
        """Return the norms of all columns and rows, 1-D float32, as many on all ranks; 0 if not finite."""
        buckets = zip(self._values, self._shapes, strict=True)
        found = [norms for values, shapes in buckets for norms in _slice_norms(values, shapes)]
        nothing = torch.zeros(0, dtype=torch.float32, device="cpu")  # whatever a model's defaults are
        return torch.cat([nothing, *found]).nan_to_num(0.0, 0.0, 0.0)

    def compare_with(self, norms: torch.Tensor) -> None:
        """Judge columns and rows by these norms where they are larger: means of all ranks' ``slice_norms``.

        All ranks' gradients are added up, so what is lost of a rank's own column is lost of the sum's. The
        own one may be all but empty, because its feature is absent from this rank's few examples.
        """
        self._known.clear()
        buckets = zip(self._values, self._shapes, strict=True)
        self._mean_norms = torch.split(
            norms, [sum(_counts(shapes, len(values))) for values, shapes in buckets]
        )

    def shares(self, codec: Codec) -> list[float]:
        """Return the share of each parameter's norm that one encoding loses; see ``lost_shares``."""
        if codec not in self._known:
            self._known[codec] = self._shares(codec)
        return self._known[codec]

    def _shares(self, codec: Codec) -> list[float]:
        shares, means = list[float](), self._mean_norms or [None] * len(self._values)
        for values, shapes, norms in zip(self._values, self._shapes, means, strict=True):
            found = _decoded(codec, values, shapes, self.placed_for)
            shares += lost_shares(values, found, shapes, norms, self.config)
        return shares


@dataclass(frozen=True)
class Shadow:
    """What whole exchanges of one bucket, or of a part of it, lost of the exact average, by parameter.

    Attributes
    ----------
    planned
        With the codecs that the plan has for them.
    plain
        With the plan's codec for all of them.
    """

    planned: Mapping[str, float]
    plain: Mapping[str, float]


def part_of(names: Collection[str], size_of: Mapping[str, int]) -> float:
    """Return the share of all values that these parameters have."""
    return sum(size_of[name] for name in names) / max(sum(size_of.values()), 1)


def _decoded(
    codec: Codec, values: torch.Tensor, shapes: Sequence[tuple[int, ...]], placed_for: int | None
) -> torch.Tensor:
    """Return what is left of a bucket's values after one encoding."""
    if codec.EXACT or values.numel() == 0:
        return values
    kept = tuple(_kept(shapes, len(values)))
    views = ParameterViews(kept, (codec,) * len(kept), tuple(map(math.prod, shapes)), placed_for)
    (part,) = views.parts
    sent = part.joined(values)
    decoded = torch.empty_like(sent)
    codec.decode(codec.encode(sent), decoded)
    return decoded if part.is_in_place else torch.cat(part.apart(decoded))


def lost_shares(
    values: torch.Tensor,
    found: torch.Tensor,
    shapes: Sequence[tuple[int, ...]],
    norms: torch.Tensor | None = None,
    config: AutoConfig = DEFAULT,
) -> list[float]:
    """Return the share of each parameter's norm that is missing in ``found``, of the values that are there.

    Of a parameter with rows and columns it is what nine in ten of them stay within, divided by
    ``slice_room``, if that is more: the norm of a whole matrix hides columns that are much smaller than
    others. ``norms`` of columns and rows count where they are larger than those of ``values``. Where there
    was no gradient nothing can be lost; where there is one after decoding alone, all is.
    """
    shares, squares = list[float](), (values.double().square(), (found - values).double().square())
    judged = iter(() if norms is None else torch.split(norms.double().square(), _counts(shapes, len(values))))
    parts = (_parts(each, shapes) for each in squares)
    for own, lost, shape in zip(*parts, shapes, strict=True):
        share = float(_shares(own.sum(), lost.sum()))
        for of_own, of_lost in zip(_slice_sums(own, shape), _slice_sums(lost, shape), strict=True):
            whole = of_own if norms is None else of_own.maximum(next(judged))
            within = float(_shares(whole, of_lost).quantile(config.slice_quantile))
            share = max(share, within / config.slice_room)
        shares.append(share)
    return shares


def _slice_norms(values: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    """Return the norms of each parameter's columns and rows, float32."""
    parts = _parts(values.double().square(), shapes)
    sums = (_slice_sums(own, shape) for own, shape in zip(parts, shapes, strict=True))
    return [each.sqrt().float() for each in chain(*sums)]


def _parts(values: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> Sequence[torch.Tensor]:
    """Return what was kept of each parameter."""
    kept = _kept(shapes, len(values))
    return torch.split(values[: sum(kept)], kept)


def _counts(shapes: Sequence[tuple[int, ...]], kept: int) -> list[int]:
    """Return how many columns and rows are judged of each parameter, of a bucket's first values."""
    return [*chain(*map(_slices, shapes, _kept(shapes, kept)))]


def _kept(shapes: Sequence[tuple[int, ...]], kept: int) -> list[int]:
    """Return how many values of each parameter are among a bucket's first ones."""
    starts = accumulate(map(math.prod, shapes), initial=0)
    return [min(max(kept - start, 0), math.prod(shape)) for start, shape in zip(starts, shapes, strict=False)]


def _slices(shape: tuple[int, ...], kept: int) -> tuple[int, ...]:
    """Return the numbers of columns and of rows that were kept; nothing for a parameter without."""
    columns = math.prod(shape[1:])
    rows = kept // columns if columns else 0
    return (columns, rows) if len(shape) > 1 and min(rows, columns) > 1 else ()


def _slice_sums(own: torch.Tensor, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Return the sums of columns and of rows."""
    counts = _slices(shape, own.numel())
    table = own[: math.prod(counts)].view(counts[::-1]) if counts else None
    return [] if table is None else [table.sum(dim) for dim in (0, 1)]


def _shares(own: torch.Tensor, lost: torch.Tensor) -> torch.Tensor:
    """Return the lost shares of norms, from squares: 0 where nothing was lost, 1 where nothing was there."""
    return torch.where(lost == 0, 0.0, torch.where(own == 0, 1.0, lost / own).sqrt()).nan_to_num(1.0, 1.0)


# A bucket of a sampled step: copied before its exchange, and if it was drawn, a part is reduced exactly.


class SampledBucket:
    """Exchanges one bucket as ``inner`` does, and lets ``samples`` have what that takes to judge it.

    Parameters
    ----------
    inner
        ``Exchange.run``, or what does more around it.
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
        inner: Reducer,
        exchange: Exchange,
        samples: Samples,
        names: Sequence[str],
        shapes: Sequence[Sequence[int]],
        drawn: bool,
    ) -> None:
        self._inner, self._exchange, self._samples = inner, exchange, samples
        self._names, self._shapes, self._drawn = names, [tuple(each) for each in shapes], drawn
        samples.expect(shapes, names)

    def run(self, tensor: torch.Tensor, request: BucketRequest) -> ExchangeCost:
        """Do what ``Exchange.run`` does; the cost is that of all exchanges."""
        self._samples.add(tensor)
        if not self._drawn:
            return self._inner(tensor, request)
        compared, floats = self._part()
        own = on_host(tensor)[floats].clone()
        cost = self._inner(tensor, request)
        cost += self._compare(own, on_host(tensor)[floats], compared, request)
        cost.nonfinite = min(cost.nonfinite, 1)
        return cost

    def _part(self) -> tuple[slice, slice]:
        """Return the parameters that are compared, and their floats: the same on all ranks.

        Whole ones, or rows of a large one, or of rows that are larger a part.
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

    def _compare(
        self, own: torch.Tensor, found: torch.Tensor, compared: slice, request: BucketRequest
    ) -> ExchangeCost:
        """Average ``own`` exactly, and with the plan's codec alone if the parameters have several."""
        exact, plain = own.clone(), found
        alone = BucketRequest(average=request.average, timeout_s=request.timeout_s)
        link, plan = self._exchange.link, self._exchange.plan
        cost = Exchange(link, Plan()).run(exact, alone)
        names, shapes = self._names[compared], self._shapes[compared]
        if plan.codecs:
            counts = [*map(math.prod, shapes)] if len(shapes) > 1 else [own.numel()]
            bucket, codecs = [*map(math.prod, self._shapes)], [plan.encoding] * len(counts)
            views, plain = ParameterViews.of(plan, link.world, counts, codecs, bucket), own
            cost += self._exchange.run(plain, replace(alone, views=views))
        if bool(exact.isfinite().all()):
            planned, plainly = (
                dict(zip(names, lost_shares(exact, each, shapes, config=self._samples.config), strict=True))
                for each in (found, plain)
            )
            self._samples.shadow = Shadow(planned, plainly)
        return cost
