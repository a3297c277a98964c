"""Samples of a rank's gradient, and the relative errors of codecs and exchanges on these samples."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

import torch

from gradwire.autotune.costs import Work, at_once
from gradwire.autotune.settings import DEFAULT, AutoConfig
from gradwire.codecs import Codec
from gradwire.exchange.views import ParameterViews

Shapes = Sequence[tuple[int, ...]]
"""The shapes of a bucket's parameters."""


@dataclass
class Samples:
    """One rank's gradients of one step, before averaging; of large buckets, each parameter's first rows.

    Buckets are in the order of the calls of ``expect``. The threads of several lanes store their values.
    """

    counts: list[int] = field(default_factory=list)  # the floats of each whole bucket
    names: list[str] = field(default_factory=list)  # of the parameters, in bucket order
    sizes: list[int] = field(default_factory=list)  # the floats of each parameter
    drawn: int | None = None  # the bucket whose exchange is compared with the exact average
    step: int = 0  # seeds the draw of the compared part of a large bucket
    shadow: Shadow | None = None  # the result of the comparison
    placed_for: int | None = None  # the ranks, if each parameter begins a new block
    config: AutoConfig = DEFAULT
    _whole: list[Shapes] = field(default_factory=list)
    _shapes: list[Shapes] = field(default_factory=list)
    _values: dict[int, torch.Tensor] = field(default_factory=dict)
    _sums: dict[int, torch.Tensor] = field(default_factory=dict)
    _mean_norms: Sequence[torch.Tensor] = ()
    _known: dict[Codec, list[float]] = field(default_factory=dict)
    _references: dict[int, Reference] = field(default_factory=dict)
    _scratch: torch.Tensor | None = None  # of all references, which are used one after the other

    def expect(self, shapes: Shapes, names: Sequence[str]) -> int:
        """Add a bucket, and return its index; all ranks add their buckets in the same order."""
        self._known.clear()
        self._references.clear()
        self.names += names
        sizes = [*map(math.prod, shapes)]
        self.sizes += sizes
        self.counts.append(sum(sizes))
        self._whole.append(shapes)
        self._shapes.append(_sampled(shapes, self.config))
        return len(self.counts) - 1

    def store(self, index: int, values: torch.Tensor) -> None:
        """Copy the float32 values of a bucket to the host."""
        self._values[index] = _copied(values, self._whole[index], self._shapes[index])

    def store_sums(self, index: int, exchanged: torch.Tensor, factor: int) -> None:
        """Copy the sampled values of a bucket after its exchange, times ``factor`` to get the sums."""
        self._sums[index] = factor * _copied(exchanged, self._whole[index], self._shapes[index])

    @property
    def has_sums(self) -> bool:
        """Whether the sums of all buckets are known, and finite."""
        return len(self._sums) == len(self.counts) and all(
            bool(each.isfinite().all()) for each in self._sums.values()
        )

    @property
    def flat_sums(self) -> torch.Tensor:
        """The sampled sums of all buckets, concatenated."""
        return torch.cat([self._sums[index] for index in range(len(self.counts))])

    @property
    def finite(self) -> bool:
        """Whether there is at least one bucket, and all sampled values are known and finite."""
        known = 0 < len(self.counts) == len(self._values)
        return known and all(bool(each.isfinite().all()) for each in self._values.values())

    @property
    def size_of(self) -> dict[str, int]:
        """The number of floats of each parameter, by name."""
        return dict(zip(self.names, self.sizes, strict=True))

    @property
    def flat(self) -> torch.Tensor:
        """The sampled values of all buckets, concatenated."""
        return torch.cat([values for values, _ in self._buckets])

    @property
    def _buckets(self) -> list[tuple[torch.Tensor, Shapes]]:
        """The sampled values of all buckets, and their shapes; zeros if a bucket wasn't exchanged."""
        found = []
        for index, shapes in enumerate(self._shapes):
            values = self._values.get(index)
            if values is None:
                values = torch.zeros(sum(map(math.prod, shapes)), dtype=torch.float32, device="cpu")
            found.append((values, shapes))
        return found

    def slice_norms(self) -> Work[torch.Tensor]:
        """Return the norms of all columns and rows: 1-D float32, 0 if not finite.

        The number of norms is the same on all ranks. Each bucket is one piece of work.
        """
        found = list[torch.Tensor]()
        for values, shapes in self._buckets:
            for part, shape in zip(_parts(values.double().square(), shapes), shapes, strict=True):
                found += [each.sqrt().float() for each in _slice_sums(part, shape)]
            yield None
        nothing = torch.zeros(0, dtype=torch.float32, device="cpu")  # independent of torch's defaults
        return torch.cat([nothing, *found]).nan_to_num(0.0, 0.0, 0.0)

    def compare_with(self, norms: torch.Tensor) -> None:
        """Divide errors of columns and rows by ``norms`` where ``norms`` exceed this rank's sampled norms.

        ``norms`` are the means of ``slice_norms`` over all ranks. Gradients are summed, so the error of a
        column on one rank is an error of the sum's column. This rank's own column may be almost zero, because
        the column's feature is absent from the rank's few examples.
        """
        self._known.clear()
        self._references.clear()
        counts = [sum(_counts(shapes, len(values))) for values, shapes in self._buckets]
        self._mean_norms = torch.split(norms, counts)

    def shares(self, codec: Codec) -> list[float]:
        """Return each parameter's relative error in one encoding; see ``Reference``."""
        at_once(self.measure([codec]))
        return self._known[codec]

    def measure(self, codecs: Iterable[Codec]) -> Work[None]:
        """Measure the ``shares`` of several codecs; each codec on each bucket is one piece of work."""
        for codec in codecs:
            if codec in self._known:
                continue
            shares = list[float]()
            for index, (values, shapes) in enumerate(self._buckets):
                found = _decoded(codec, values, shapes, self.placed_for)
                shares += self._reference(index, values, shapes).lost_shares(found)
                yield None
            self._known[codec] = shares

    def _reference(self, index: int, values: torch.Tensor, shapes: Shapes) -> Reference:
        if index not in self._references:
            norms = self._mean_norms[index] if self._mean_norms else None
            if self._scratch is None or len(self._scratch) < len(values):
                self._scratch = torch.empty_like(values, dtype=torch.float64)
            self._references[index] = Reference(values, shapes, norms, self.config, self._scratch)
        return self._references[index]


@dataclass(frozen=True)
class Shadow:
    """The relative errors of a whole exchange, by parameter, in one bucket or in a part of this bucket."""

    planned: Mapping[str, float]  # with each parameter's codec in the plan
    plain: Mapping[str, float]  # with the plan's main codec for all parameters


def _copied(values: torch.Tensor, shapes: Shapes, sampled: Shapes) -> torch.Tensor:
    """Copy the sampled parts of a bucket to the host as 1-D values."""
    flat = values.detach()
    if sampled != [*shapes]:
        sizes = [*map(math.prod, shapes)]
        parts = zip(torch.split(flat[: sum(sizes)], sizes), map(math.prod, sampled), strict=True)
        flat = torch.cat([part[:count] for part, count in parts])
    return flat.to("cpu", copy=True)


def _sampled(shapes: Shapes, config: AutoConfig) -> list[tuple[int, ...]]:
    """Return the shapes of the sampled parts of a bucket: the first rows or values of each parameter."""
    total, found = sum(map(math.prod, shapes)), list[tuple[int, ...]]()
    for shape in shapes:
        size, row = math.prod(shape), math.prod(shape[1:])
        count = max(size * config.sample_count // max(total, 1), config.least_sample_count)
        if total <= config.sample_count or size <= count:
            found.append(shape)
        elif len(shape) > 1 and 0 < row <= count:
            found.append((count // row, *shape[1:]))
        else:
            found.append((count,))
    return found


def part_of(names: Collection[str], size_of: Mapping[str, int]) -> float:
    """Return the share of all values that these parameters hold."""
    return sum(size_of[name] for name in names) / max(sum(size_of.values()), 1)


def _decoded(codec: Codec, values: torch.Tensor, shapes: Shapes, placed_for: int | None) -> torch.Tensor:
    if codec.EXACT or values.numel() == 0:
        return values
    kept = tuple(_kept(shapes, len(values)))
    views = ParameterViews(kept, (codec,) * len(kept), tuple(map(math.prod, shapes)), placed_for)
    (part,) = views.parts
    sent = part.joined(values)
    decoded = torch.empty_like(sent)
    codec.decode(codec.encode(sent), decoded)
    return decoded if part.is_in_place else torch.cat(part.apart(decoded))


class Reference:
    """An exact gradient, with the squared norms by which squared errors are divided.

    The norm of a whole matrix hides columns with much smaller norms. For a parameter with rows and columns,
    the relative error is therefore at least the ``slice_quantile`` of the errors of rows and columns, divided
    by ``slice_room``. ``norms`` of columns and rows replace smaller norms of ``values``. ``scratch`` is
    float64 memory for as many values: fresh memory for each codec would take longer than the sums.
    """

    def __init__(
        self,
        values: torch.Tensor,
        shapes: Shapes,
        norms: torch.Tensor | None = None,
        config: AutoConfig = DEFAULT,
        scratch: torch.Tensor | None = None,
    ) -> None:
        self._values, self._shapes, self._config = values, shapes, config
        if scratch is None:
            scratch = torch.empty_like(values, dtype=torch.float64)
        self._squares = scratch[: len(values)]
        self._wholes = self._sums(self._squares.copy_(values).square_())
        if norms is not None:
            means = iter(torch.split(norms.double().square(), _counts(shapes, len(values))))
            self._wholes = [
                (own, [each.maximum(next(means)) for each in slices]) for own, slices in self._wholes
            ]

    def lost_shares(self, found: torch.Tensor) -> list[float]:
        """Return the relative error of each parameter in ``found``, over its sampled values.

        The relative error of a zero gradient is 0 if the gradient is decoded exactly, and otherwise 1.
        """
        shares, lost = list[float](), torch.sub(found, self._values, out=self._squares).square_()
        for (own, wholes), (lost_own, slices) in zip(self._wholes, self._sums(lost), strict=True):
            share = float(_shares(own, lost_own))
            for whole, of_lost in zip(wholes, slices, strict=True):
                within = float(_shares(whole, of_lost).quantile(self._config.slice_quantile))
                share = max(share, within / self._config.slice_room)
            shares.append(share)
        return shares

    def _sums(self, squares: torch.Tensor) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
        """Return the sum of each parameter's squares, and the sums of its columns and rows."""
        pairs = zip(_parts(squares, self._shapes), self._shapes, strict=True)
        return [(part.sum(), _slice_sums(part, shape)) for part, shape in pairs]


def _parts(values: torch.Tensor, shapes: Shapes) -> Sequence[torch.Tensor]:
    kept = _kept(shapes, len(values))
    return torch.split(values[: sum(kept)], kept)


def _counts(shapes: Shapes, count: int) -> list[int]:
    """Return the numbers of columns and rows of each parameter among a bucket's first ``count`` values."""
    return [*chain(*map(_slices, shapes, _kept(shapes, count)))]


def _kept(shapes: Shapes, count: int) -> list[int]:
    """Return the number of values of each parameter among a bucket's first ``count`` values."""
    starts = accumulate(map(math.prod, shapes), initial=0)
    return [
        min(max(count - start, 0), math.prod(shape)) for start, shape in zip(starts, shapes, strict=False)
    ]


def _slices(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return the numbers of sampled columns and rows; empty unless both are at least 2."""
    columns = math.prod(shape[1:])
    rows = count // columns if columns else 0
    return (columns, rows) if len(shape) > 1 and min(rows, columns) > 1 else ()


def _slice_sums(values: torch.Tensor, shape: tuple[int, ...]) -> list[torch.Tensor]:
    counts = _slices(shape, values.numel())
    if not counts:
        return []
    table = values[: math.prod(counts)].view(counts[::-1])
    return [table.sum(dim) for dim in (0, 1)]


def _shares(gradients: torch.Tensor, lost: torch.Tensor) -> torch.Tensor:
    """Return relative errors from squared norms: 0 without an error, 1 for an error on a zero gradient."""
    return torch.where(lost == 0, 0.0, torch.where(gradients == 0, 1.0, lost / gradients).sqrt()).nan_to_num(
        1.0, 1.0
    )
