"""The layout of a bucket's parameters for the exchange: grouped by codec, contiguous or aligned to blocks.

Parameters of one codec may be separate in the bucket, so they are copied to one tensor, and back after the
exchange. The copies take less time than frames for each parameter. A run without residual and norms copies
segment by segment.

A codec's block has one scale. If a block spans two parameters, and one parameter's values are a thousand
times smaller, these values are rounded to 0. So each parameter starts a new block, unless that needs much
padding.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch

from gradwire import collectives
from gradwire.codecs import Codec
from gradwire.devices import CPU, device_of
from gradwire.exchange.feedback import Residual
from gradwire.plan import Plan

_MOST_ZEROS = 0.125
"""The largest padding for alignment, as a share of the bucket's values."""


@dataclass(frozen=True)
class CodecPart:
    """The parameters of one codec, with their indices and ranges in the bucket.

    In the exchanged values, each parameter is padded with zeros to a multiple of ``unit`` values. The last
    parameter is padded further, so that all of the algorithm's ``chunks`` also start at a multiple of
    ``unit``.
    """

    codec: Codec
    numbers: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    unit: int = 1
    chunks: int = 1

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of values of each parameter."""
        return tuple(stop - start for start, stop in self.ranges)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of exchanged values of each parameter, with padding."""
        return _sizes(self.counts, self.unit, self.chunks)

    @cached_property
    def borders(self) -> tuple[int, ...]:
        """The start of each parameter in the exchanged values, and the end of the last one."""
        return (0, *accumulate(self.sizes))

    @cached_property
    def table(self) -> list[torch.Tensor]:
        """The parameters' starts in the bucket, their numbers of values, and the borders; int64."""
        columns = [start for start, _ in self.ranges], self.counts, self.borders
        with torch.inference_mode(mode=False):
            return [torch.tensor(each, dtype=torch.int64, device="cpu") for each in columns]

    @cached_property
    def filled(self) -> float:
        """The fraction of the exchanged values that isn't padding."""
        return sum(self.counts) / max(sum(self.sizes), 1)

    @cached_property
    def is_in_place(self) -> bool:
        """Whether these parameters are contiguous in the bucket and have no padding."""
        return self.sizes == self.counts and self.ranges[-1][1] - self.ranges[0][0] == sum(self.counts)

    def joined(self, bucket: torch.Tensor) -> torch.Tensor:
        """Return the values to exchange, as a view of the bucket if possible, else as a copy."""
        if self.is_in_place:
            return bucket[self.ranges[0][0] : self.ranges[-1][1]]
        device = device_of(bucket)
        values = bucket.new_empty(self.borders[-1]) if device is CPU else device.zeros(self.borders[-1])
        SegmentCopies(bucket, values, self).load(0, values.numel())
        return values

    def apart(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return views of the parameters in ``values``, a result of ``joined``."""
        parts = torch.split(values, [*self.sizes])
        return [part[:count] for part, count in zip(parts, self.counts, strict=True)]

    def put(self, bucket: torch.Tensor, values: torch.Tensor) -> None:
        """Copy ``values``, a result of ``joined``, to the bucket, unless they share its memory."""
        if not self.is_in_place:
            SegmentCopies(bucket, values, self).store(0, values.numel())

    def joined_residual(self, residual: torch.Tensor | Residual | None) -> torch.Tensor | Residual | None:
        """Return the part of a bucket's residual for these parameters."""
        if isinstance(residual, Residual):
            assert self.sizes == self.counts  # a plan with residuals has no padding
            values = [residual.values[number] for number in self.numbers]
            return Residual(values, self.joined(residual.lost), residual.waits)
        return None if residual is None else self.joined(residual)

    def put_residual(
        self, residual: torch.Tensor | Residual | None, part: torch.Tensor | Residual | None
    ) -> None:
        """Copy ``part``, a result of ``joined_residual``, to the bucket's residual after an exchange."""
        if isinstance(residual, Residual) and isinstance(part, Residual):
            self.put(residual.lost, part.lost)
            residual.replaced &= part.replaced
            residual.finite &= part.finite
        elif isinstance(residual, torch.Tensor) and isinstance(part, torch.Tensor):
            self.put(residual, part)

    def between(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield pieces of exchanged values: start in the bucket, number of values, and number of zeros."""
        borders, counts = self.borders, self.counts
        number = bisect_right(borders, start) - 1
        while number < len(counts) and borders[number] < stop:
            begin, end = max(start - borders[number], 0), min(stop, borders[number + 1]) - borders[number]
            if end > begin:
                values = max(min(end, counts[number]) - begin, 0)
                yield self.ranges[number][0] + begin, values, end - begin - values
            number += 1


class SegmentCopies:
    """The copies of one run between ``bucket`` and ``values``, the exchanged tensor, segment by segment.

    So the first frame is sent before later segments are copied, a segment is still in the cache when it is
    encoded, and most copies overlap communication.
    """

    def __init__(self, bucket: torch.Tensor, values: torch.Tensor, part: CodecPart) -> None:
        self._bucket, self._values, self._part = bucket, values, part
        self._here = set[tuple[int, int]]()

    @property
    def native(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The copies as data for the native engine."""
        starts, counts, borders = self._part.table
        return self._bucket, starts, counts, borders

    def load(self, start: int, stop: int) -> None:
        """Copy the range ``start..stop`` of the exchanged values from the bucket, unless it was copied."""
        if (start, stop) in self._here or start == stop:
            return
        self._here.add((start, stop))
        parts = list[torch.Tensor]()
        for first, count, zeros in self._part.between(start, stop):
            if count:
                parts.append(self._bucket[first : first + count])
            if zeros:
                parts.append(self._bucket.new_zeros(zeros))
        torch.cat(parts, out=self._values[start:stop])

    def store(self, start: int, stop: int) -> None:
        """Copy the final values of the range ``start..stop`` to the bucket."""
        for first, count, zeros in self._part.between(start, stop):
            self._bucket[first : first + count] = self._values[start : start + count]
            start += count + zeros


@dataclass(frozen=True)
class ParameterViews:
    """The parameters of a bucket in order, with their numbers of floats and their codecs.

    Codecs are the same on all ranks. ``bucket`` has the counts of all parameters, which determine the
    alignment, if ``counts`` has only some of them. ``world`` is the number of ranks; None for no padding.
    ``chunks`` is the algorithm's number of chunks.
    """

    counts: tuple[int, ...]
    codecs: tuple[Codec, ...]
    bucket: tuple[int, ...] = ()
    world: int | None = None
    chunks: int = 1

    @classmethod
    def of(
        cls,
        plan: Plan,
        world: int,
        counts: Sequence[int],
        codecs: Sequence[Codec],
        bucket: Sequence[int] = (),
    ) -> ParameterViews:
        """Return a plan's views of parameters, which have no padding if the plan keeps a residual."""
        ranks, chunks = None if plan.keeps_residual else world, collectives.get(plan.algorithm).chunks(world)
        return cls(tuple(counts), tuple(codecs), tuple(bucket), ranks, chunks)

    @cached_property
    def borders(self) -> tuple[int, ...]:
        """The start of each parameter in the bucket, and the end of the last one."""
        return (*accumulate(self.counts, initial=0),)

    @cached_property
    def parts(self) -> tuple[CodecPart, ...]:
        """The parameters, grouped by codec, in the order of the codecs' first parameters."""
        ranges, numbers = [*pairwise(self.borders)], dict[Codec, list[int]]()
        for number, codec in enumerate(self.codecs):
            numbers.setdefault(codec, []).append(number)
        parts = list[CodecPart]()
        for codec, some in numbers.items():
            unit = 1 if self.world is None else unit_of(codec, self.bucket or self.counts, self.world)
            own = tuple(ranges[each] for each in some)
            parts.append(CodecPart(codec, tuple(some), own, unit, self.chunks))
        return tuple(parts)

    @property
    def is_in_place(self) -> bool:
        """Whether the bucket has one codec and no padding, so that it needs no copies."""
        return len(self.parts) < 2 and all(part.is_in_place for part in self.parts)


def views_of(plan: Plan, world: int, names: Sequence[str], counts: Sequence[int]) -> ParameterViews | None:
    """Return the views of a bucket's parameters; None if the plan has one codec and no padding is needed."""
    views = ParameterViews.of(plan, world, counts, [plan.encoding_of(name) for name in names])
    return None if not plan.codecs and views.is_in_place else views


def unit_of(codec: Codec, counts: Sequence[int], world: int) -> int:
    """Return the alignment of a bucket's parameters in values, or 1 if the padding would be too large.

    The alignment is the same for all parts of the bucket, and for all algorithms, which have up to ``world``
    chunks.
    """
    unit = codec.parameter_unit
    return unit if sum(_sizes(counts, unit, world)) <= (1 + _MOST_ZEROS) * sum(counts) else 1


def _sizes(counts: Sequence[int], unit: int, chunks: int) -> tuple[int, ...]:
    """Return the number of exchanged values of each parameter, with padding."""
    taken = [_up(count, unit) for count in counts[:-1]]
    begun, whole = sum(taken), unit if unit == 1 else unit * chunks
    return (*taken, *(_up(begun + count, whole) - begun for count in counts[-1:]))


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
