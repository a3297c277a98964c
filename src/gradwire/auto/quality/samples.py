"""Samples of a rank's own gradient, and what codecs and exchanges lose of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from gradwire.codecs import Codec
from gradwire.exchange.placement import Placement, unit_of

MOST_COUNT = 1 << 20
"""The most floats of a bucket that are kept."""
MOST_SLICES = 0.9
"""This share of a parameter's rows, and of its columns, counts."""
ROOM = 5.0
"""A row or column may lose so many times as much as the whole parameter: those that all but vanish no longer
learn; that others are rounded coarsely costs no loss (docs/which_codec.md)."""


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
    """

    counts: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    drawn: int | None = None
    step: int = 0
    shadow: Shadow | None = None
    placed_for: int | None = None
    _shapes: list[list[tuple[int, ...]]] = field(default_factory=list)
    _values: list[torch.Tensor] = field(default_factory=list)
    _known: dict[Codec, list[float]] = field(default_factory=dict)

    def expect(self, shapes: Sequence[Sequence[int]], names: Sequence[str]) -> None:
        """Note the shapes and names of the next bucket's parameters, in the bucket's order."""
        self._shapes.append([tuple(each) for each in shapes])
        self.names += names
        self.sizes += map(math.prod, shapes)
        self.counts.append(sum(map(math.prod, shapes)))

    def add(self, values: torch.Tensor) -> None:
        """Copy the next bucket's values, float32, to the host."""
        self._known.clear()
        self._values.append(values.detach()[:MOST_COUNT].to("cpu", copy=True))

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

    def shares(self, codec: Codec) -> list[float]:
        """Return the share of each parameter's norm that one encoding loses; see ``lost_shares``."""
        if codec not in self._known:
            self._known[codec] = self._shares(codec)
        return self._known[codec]

    def _shares(self, codec: Codec) -> list[float]:
        buckets = zip(self._values, self._shapes, strict=True)
        world = self.placed_for
        return [share for values, shapes in buckets for share in _lost(codec, values, shapes, world)]


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


def _lost(
    codec: Codec, values: torch.Tensor, shapes: Sequence[tuple[int, ...]], placed_for: int | None
) -> list[float]:
    if codec.EXACT or values.numel() == 0:
        return [0.0] * len(shapes)
    counts = [*map(math.prod, shapes)]
    starts = [*accumulate(counts, initial=0)]
    kept = [max(min(len(values) - start, count), 0) for start, count in zip(starts, counts, strict=False)]
    unit = 1 if placed_for is None else unit_of(codec, counts, placed_for)
    placement = Placement(tuple(kept), unit)
    sent = values if placement.is_dense else placement.joined(torch.split(values, kept))
    decoded = torch.empty_like(sent)
    codec.decode(codec.encode(sent), decoded)
    found = decoded if placement.is_dense else torch.cat(placement.apart(decoded))
    return lost_shares(values, found, shapes)


def lost_shares(values: torch.Tensor, found: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> list[float]:
    """Return the share of each parameter's norm that is missing in ``found``, of the values that are there.

    Of a parameter with rows and columns it is a fifth (``ROOM``) of what nine in ten of them stay within, if
    that is more: the norm of a whole matrix hides columns that are much smaller than others. Where there was
    no gradient nothing can be lost; where there is one after decoding alone, all is.
    """
    own, lost = values.double().square(), (found - values).double().square()
    start, shares = 0, []
    for shape in shapes:
        stop = min(start + math.prod(shape), len(own))
        shares.append(_lost_of(own[start:stop], lost[start:stop], shape))
        start = stop
    return shares


def _lost_of(own: torch.Tensor, lost: torch.Tensor, shape: tuple[int, ...]) -> float:
    """Return the share that one parameter loses, from squares."""
    share = float(_shares(own.sum(), lost.sum()))
    columns = math.prod(shape[1:])
    rows = own.numel() // columns if columns else 0  # of a large parameter, those that were kept
    if len(shape) < 2 or min(rows, columns) < 2:
        return share
    own, lost = (each[: rows * columns].view(rows, columns) for each in (own, lost))
    slices = (_shares(own.sum(dim), lost.sum(dim)) for dim in (0, 1))
    return max(share, *(float(each.quantile(MOST_SLICES)) / ROOM for each in slices))


def _shares(own: torch.Tensor, lost: torch.Tensor) -> torch.Tensor:
    """Return the lost shares of norms, from squares: 0 where nothing was lost, 1 where nothing was there."""
    return torch.where(lost == 0, 0.0, torch.where(own == 0, 1.0, lost / own).sqrt()).nan_to_num(1.0, 1.0)
