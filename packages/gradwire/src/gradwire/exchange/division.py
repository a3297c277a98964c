"""A bucket whose parameters have different codecs, or a codec that wants each at the beginning of a block.

Those of one codec are exchanged together. They lie apart in the bucket, so they are copied to their places
(``Placement``), and back: a copy takes less than the latency of another exchange for each of them. A walk
that keeps and measures nothing copies them itself, segment by segment (``Copies``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Protocol

import torch

from gradwire import collectives
from gradwire.codecs import Codec
from gradwire.codecs.base import check_chunk
from gradwire.costs import ExchangeCost
from gradwire.devices import CPU, device_of, on_host
from gradwire.exchange.exchange import Exchange
from gradwire.exchange.feedback import Residual
from gradwire.exchange.norms import Norms
from gradwire.exchange.placement import Copies, Pieces, Placement, unit_of


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
    """The parameters of one codec: their numbers in the bucket, where each begins and ends, and its place."""

    codec: Codec
    numbers: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    placement: Placement

    @cached_property
    def lies_in_place(self) -> bool:
        """Whether these parameters lie in a bucket as they are exchanged."""
        (start, _), (_, stop) = self.ranges[0], self.ranges[-1]
        return self.placement.is_dense and stop - start == sum(self.placement.counts)

    @cached_property
    def pieces(self) -> Pieces:
        """What is copied where they don't."""
        return Pieces(self.ranges, self.placement)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return these parameters' elements in their places, in the tensor's own memory if they lie so."""
        if self.lies_in_place:
            return tensor[self.ranges[0][0] : self.ranges[-1][1]]
        values = tensor.new_empty(self.placement.borders[-1])
        Copies(tensor, values, self.pieces).bring(0, values.numel())
        return values

    def put(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Copy to ``tensor`` what ``of`` has returned, unless it is its memory."""
        if not self.lies_in_place:
            Copies(tensor, values, self.pieces).take_back(0, values.numel())

    def lend(self, residual: torch.Tensor | Residual | None) -> torch.Tensor | Residual | None:
        """Return these parameters' residual."""
        if isinstance(residual, Residual):
            assert self.placement.is_dense  # the plan keeps residuals
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
        return Norms(self.placement.borders)


class Division:
    """Exchanges buckets of one layout, with a codec for each parameter.

    Where the plan keeps no residual, parameters begin at multiples of ``unit_of``.

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
        self._parts = []
        for codec, own in numbers.items():
            placement = placement_of(exchange, codec, [counts[each] for each in own], counts)
            self._parts.append(_Part(codec, tuple(own), tuple(ranges[each] for each in own), placement))

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
        check_chunk(tensor, "tensor", on_cuda=True)
        plain = residual is None and norms is None and device_of(tensor) is CPU
        for part in self._parts:
            if plain and not part.lies_in_place:
                cost = self._copied(part, tensor, average, timeout_s)
            else:
                cost = self._whole(part, tensor, average, residual, norms, timeout_s)
            cost.raw_nbytes *= part.placement.filled  # zeros are no floats that somebody wanted to send
            total += cost
        total.nonfinite = min(total.nonfinite, 1)
        return total

    def _copied(
        self, part: _Part, tensor: torch.Tensor, average: bool, timeout_s: float | None
    ) -> ExchangeCost:
        """Exchange parameters that the walk copies when it needs them."""
        values = self._exchange.scratch(part.placement.borders[-1])
        copies = Copies(tensor, values, part.pieces)
        return self._exchange.all_reduce(values, average, None, None, timeout_s, part.codec, copies)

    def _whole(
        self,
        part: _Part,
        tensor: torch.Tensor,
        average: bool,
        residual: torch.Tensor | Residual | None,
        norms: Norms | None,
        timeout_s: float | None,
    ) -> ExchangeCost:
        """Exchange parameters that are in their places, all of them, before the walk begins."""
        values = part.of(tensor)
        kept = part.lend(residual)
        own = None if norms is None else part.norms()
        if own is not None and part.codec.EXACT:  # an exchange looks at nothing then
            own.look(on_host(values))
        measured = None if part.codec.EXACT else own
        cost = self._exchange.all_reduce(values, average, kept, measured, timeout_s, part.codec)
        part.put(tensor, values)
        part.take(residual, kept)
        if norms is not None and own is not None:
            norms.sums[:, list(part.numbers)] = own.sums
        return cost


def divided(exchange: Exchange, names: Sequence[str], counts: Sequence[int]) -> AllReduces:
    """Return what exchanges buckets of these parameters: the exchange itself where they lie as they are to.

    That is where the plan has one codec, which needs no zeros between them.
    """
    plan = exchange.plan
    if not plan.codecs and placement_of(exchange, plan.encoding, counts, counts).is_dense:
        return exchange
    return Division(exchange, [plan.encoding_of(name) for name in names], counts)


def placement_of(exchange: Exchange, codec: Codec, counts: Sequence[int], bucket: Sequence[int]) -> Placement:
    """Return where parameters lie in the exchange with their codec, of those that a bucket has."""
    plan, world = exchange.plan, exchange.link.world
    unit = 1 if plan.keeps_residual else unit_of(codec, bucket, world)
    return Placement(tuple(counts), unit, collectives.get(plan.algorithm).chunks(world))
