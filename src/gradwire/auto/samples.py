"""Samples of a rank's own gradient, and what a codec loses of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from gradwire.codecs import Codec

MOST_COUNT = 1 << 20
"""The most floats of a bucket that are kept."""


@dataclass
class Samples:
    """One step's buckets of a rank, before any average; of a large bucket its beginning.

    Attributes
    ----------
    counts
        The floats of each bucket, all of them.
    """

    counts: list[int] = field(default_factory=list)
    _sizes: list[tuple[int, ...]] = field(default_factory=list)
    _values: list[torch.Tensor] = field(default_factory=list)

    def expect(self, sizes: Sequence[int]) -> None:
        """Note the sizes of the next bucket's parameters, in the bucket's order."""
        kept, left = list[int](), MOST_COUNT
        for size in sizes:
            kept.append(min(size, left))
            left -= kept[-1]
        self.counts.append(sum(sizes))
        self._sizes.append(tuple(kept))

    def add(self, values: torch.Tensor) -> None:
        """Copy the next bucket's values, float32, to the host."""
        sizes = self._sizes[len(self._values)]
        self._values.append(values.detach()[: sum(sizes)].to("cpu", copy=True))

    @property
    def finite(self) -> bool:
        """Whether codecs can be measured on them."""
        return bool(self.counts) and all(bool(each.isfinite().all()) for each in self._values)

    @property
    def flat(self) -> torch.Tensor:
        """All values that were kept, one bucket after the other."""
        return torch.cat(self._values)

    def lost(self, codec: Codec) -> float:
        """Return the share of the norm that one encoding loses of the parameter that loses most.

        A parameter without any gradient loses nothing; one that gets values where it had none loses all.
        """
        buckets = zip(self._values, self._sizes, strict=True)
        return max((_lost(codec, values, sizes) for values, sizes in buckets), default=0.0)


def _lost(codec: Codec, values: torch.Tensor, sizes: Sequence[int]) -> float:
    if codec.EXACT or values.numel() == 0:
        return 0.0
    decoded = torch.empty_like(values)
    codec.decode(codec.encode(values), decoded)
    parts = zip(*(torch.split(each, list(sizes)) for each in (values, decoded.sub_(values))), strict=True)
    return max(_share(float(own.norm()), float(lost.norm())) for own, lost in parts)


def _share(own: float, lost: float) -> float:
    if lost == 0:
        return 0.0
    share = lost / own if own else 1.0
    return share if math.isfinite(share) else 1.0
