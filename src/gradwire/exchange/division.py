"""A bucket whose parameters have different codecs: those of one codec are exchanged together.

They lie apart in the bucket, so they are copied to where they lie side by side, and back: a copy takes less
than the latency of another exchange for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch

from gradwire.codecs import Codec
from gradwire.costs import ExchangeCost
from gradwire.devices import on_host
from gradwire.exchange.exchange import Exchange
from gradwire.exchange.norms import Norms
from gradwire.exchange.residual import Residual


class AllReduces(Protocol):
    """What exchanges a bucket: an ``Exchange``, or what stands between it and the bucket."""

    def all_reduce(
        self,
        tensor: torch.Tensor,
        average: bool = True,
        residual: torch.Tensor | Residual | None = None,
        norms: Norms | None = None,
        timeout_s: float | None = None,
    ) -> ExchangeCost:
        """Do what ``Exchange.all_reduce`` does."""


@dataclass(frozen=True)
class _Part:
    """The parameters of one codec: their numbers in the bucket, and where each begins and ends."""

    codec: Codec
    numbers: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return these parameters' elements side by side, in the tensor's own memory if they lie so."""
        (start, _), (_, stop) = self.ranges[0], self.ranges[-1]
        if stop - start == sum(self._counts):
            return tensor[start:stop]
        return torch.cat([tensor[start:stop] for start, stop in self.ranges])

    def put(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Copy to ``tensor`` what ``of`` has returned, unless it is its memory."""
        if values.data_ptr() != tensor[self.ranges[0][0] :].data_ptr():
            for (start, stop), part in zip(self.ranges, torch.split(values, self._counts), strict=True):
                tensor[start:stop] = part

    def lend(self, residual: torch.Tensor | Residual | None) -> torch.Tensor | Residual | None:
        """Return these parameters' residual."""
        if isinstance(residual, Residual):
            values = [residual.values[number] for number in self.numbers]
            return Residual(values, self.of(residual.lost), residual.waits)
        return None if residual is None else self.of(residual)

    def take(self, residual: torch.Tensor | Residual | None, lent: torch.Tensor | Residual | None) -> None:
        """Put into a bucket's residual what a walk has made of what ``lend`` has returned."""
        if isinstance(residual, Residual) and isinstance(lent, Residual):
            self.put(residual.lost, lent.lost)
            residual.replaced &= lent.replaced
            residual.finite &= lent.finite
        elif isinstance(residual, torch.Tensor) and isinstance(lent, torch.Tensor):
            self.put(residual, lent)

    def norms(self) -> Norms:
        """Return norms of these parameters."""
        return Norms([0, *accumulate(self._counts)])

    @property
    def _counts(self) -> list[int]:
        return [stop - start for start, stop in self.ranges]


class Division:
    """Exchanges buckets of one layout, with a codec for each parameter.

    Parameters
    ----------
    exchange
        Does it.
    codecs
        One for each parameter, in the order of the bucket; the same on all ranks.
    counts
        How many floats each parameter has.
    """

    def __init__(self, exchange: Exchange, codecs: Sequence[Codec], counts: Sequence[int]) -> None:
        stops = [*accumulate(counts)]
        ranges = [(stop - count, stop) for stop, count in zip(stops, counts, strict=True)]
        numbers: dict[Codec, list[int]] = {}
        for number, codec in enumerate(codecs):
            numbers.setdefault(codec, []).append(number)
        self._exchange = exchange
        self._parts = [
            _Part(codec, tuple(own), tuple(ranges[each] for each in own)) for codec, own in numbers.items()
        ]

    def all_reduce(
        self,
        tensor: torch.Tensor,
        average: bool = True,
        residual: torch.Tensor | Residual | None = None,
        norms: Norms | None = None,
        timeout_s: float | None = None,
    ) -> ExchangeCost:
        """Do what ``Exchange.all_reduce`` does, codec by codec, in the order of their first parameters."""
        total = ExchangeCost()
        if isinstance(residual, Residual):
            residual.replaced = residual.finite = True
        for part in self._parts:
            values = part.of(tensor)
            kept = part.lend(residual)
            own = None if norms is None else part.norms()
            if own is not None and part.codec.EXACT:  # an exchange looks at nothing then
                own.look(on_host(values))
            measured = None if part.codec.EXACT else own
            total += self._exchange.all_reduce(values, average, kept, measured, timeout_s, part.codec)
            part.put(tensor, values)
            part.take(residual, kept)
            if norms is not None and own is not None:
                norms.sums[:, list(part.numbers)] = own.sums
        total.nonfinite = min(total.nonfinite, 1)
        return total


def divided(exchange: Exchange, names: Sequence[str], counts: Sequence[int]) -> AllReduces:
    """Return what exchanges buckets of these parameters: the exchange itself where its plan has one codec."""
    if not exchange.plan.codecs:
        return exchange
    return Division(exchange, [exchange.plan.encoding_of(name) for name in names], counts)
