"""What a ledger counts: a bucket's bytes and seconds, a reason's bypasses, and both for a span of steps."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self, TypeVar

from gradwire.costs import ExchangeCost
from gradwire.errors import StateError
from gradwire.units import is_number


@dataclass(frozen=True, slots=True)
class BucketCounts:
    """What the exchanges of one bucket cost this rank; counts add up.

    Attributes
    ----------
    exchanges
        How many there were.
    gradient_nbytes
        Bytes of float32 gradient that were averaged. 0 where weights travelled.
    raw_nbytes, wire_nbytes
        Bytes of floats that this rank sent, and bytes that carried them, frame headers included. A ring of p
        ranks sends ``2 (p - 1) / p`` of a gradient, so ``raw_nbytes`` is not ``gradient_nbytes``.
    codec_s
        Seconds of encoding and decoding.
    link_s
        Seconds of waiting for frames.
    exposed_s
        Seconds for which the training thread stood still; the rest was hidden behind its own work.
    exchange_s
        Seconds that the exchanges took, hidden or not.
    largest_error
        The largest absolute error of any value where somebody measured it; NaN if one of them was NaN.
    nonfinite
        After how many of the exchanges the bucket held a NaN or an infinity.
    """

    exchanges: int = 0
    gradient_nbytes: int = 0
    raw_nbytes: int = 0
    wire_nbytes: int = 0
    codec_s: float = 0.0
    link_s: float = 0.0
    exposed_s: float = 0.0
    exchange_s: float = 0.0
    largest_error: float | None = None
    nonfinite: int = 0

    @classmethod
    def of(cls, cost: ExchangeCost, gradient_nbytes: int, exposed_s: float, error: float | None) -> Self:
        """Return the counts of one exchange."""
        return cls(
            exchanges=1,
            gradient_nbytes=gradient_nbytes,
            raw_nbytes=int(cost.raw_nbytes),
            wire_nbytes=int(cost.wire_nbytes),
            codec_s=cost.codec_s,
            link_s=cost.wait_s,
            exposed_s=exposed_s,
            exchange_s=cost.total_s,
            largest_error=error,
            nonfinite=cost.nonfinite,
        )

    @property
    def ratio(self) -> float:
        """How many times fewer bytes travelled than floats were sent; 1 where nothing was."""
        return self.raw_nbytes / self.wire_nbytes if self.wire_nbytes else 1.0

    def __add__(self, other: BucketCounts) -> BucketCounts:
        return BucketCounts(
            exchanges=self.exchanges + other.exchanges,
            gradient_nbytes=self.gradient_nbytes + other.gradient_nbytes,
            raw_nbytes=self.raw_nbytes + other.raw_nbytes,
            wire_nbytes=self.wire_nbytes + other.wire_nbytes,
            codec_s=self.codec_s + other.codec_s,
            link_s=self.link_s + other.link_s,
            exposed_s=self.exposed_s + other.exposed_s,
            exchange_s=self.exchange_s + other.exchange_s,
            largest_error=_larger(self.largest_error, other.largest_error),
            nonfinite=self.nonfinite + other.nonfinite,
        )


@dataclass(frozen=True, slots=True)
class BypassCounts:
    """How often gradients went around the codec for one reason, and how many bytes of them."""

    count: int = 0
    nbytes: int = 0

    def __add__(self, other: BypassCounts) -> BypassCounts:
        return BypassCounts(self.count + other.count, self.nbytes + other.nbytes)


_LATER = {"nonfinite"}  # states that an earlier gradwire saved do not have these
Counts = TypeVar("Counts", BucketCounts, BypassCounts)


@dataclass(slots=True)
class Tally:
    """Counts by bucket and bypasses by reason, in the order of their first appearance."""

    buckets: dict[str, BucketCounts] = field(default_factory=dict)
    bypasses: dict[str, BypassCounts] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.buckets or self.bypasses)

    def add(self, other: Tally) -> None:
        """Count ``other``, too."""
        for bucket, counts in other.buckets.items():
            self.add_bucket(bucket, counts)
        for reason, bypass in other.bypasses.items():
            self.add_bypass(reason, bypass)

    def add_bucket(self, bucket: str, counts: BucketCounts) -> None:
        """Count exchanges of a bucket."""
        self.buckets[bucket] = self.buckets.get(bucket, BucketCounts()) + counts

    def add_bypass(self, reason: str, bypass: BypassCounts) -> None:
        """Count bypasses for a reason."""
        self.bypasses[reason] = self.bypasses.get(reason, BypassCounts()) + bypass

    def copy(self) -> Tally:
        """Return a tally that later counts leave alone."""
        return Tally(dict(self.buckets), dict(self.bypasses))

    @property
    def total(self) -> BucketCounts:
        """The sum over all buckets."""
        return sum(self.buckets.values(), BucketCounts())

    @property
    def bypassed(self) -> BypassCounts:
        """The sum over all reasons."""
        return sum(self.bypasses.values(), BypassCounts())

    def state(self) -> dict[str, Any]:
        """Return plain dictionaries, numbers and strings."""
        return {
            "buckets": {bucket: asdict(counts) for bucket, counts in self.buckets.items()},
            "bypasses": {reason: asdict(counts) for reason, counts in self.bypasses.items()},
        }

    @classmethod
    def of_state(cls, state: object) -> Self:
        """Read what ``state`` returned. Raises ``StateError``."""
        return cls(_counts_of(BucketCounts, state, "buckets"), _counts_of(BypassCounts, state, "bypasses"))


def _counts_of(kind: type[Counts], state: object, part: str) -> dict[str, Counts]:
    rows = state.get(part) if isinstance(state, Mapping) else None
    if not isinstance(rows, Mapping):
        raise StateError(f"a ledger's state has counts in '{part}', but this one has {reprlib.repr(rows)}")
    for name, row in rows.items():
        if not isinstance(row, Mapping) or not all(_fits(each.name, row) for each in fields(kind)):
            raise StateError(
                f"a ledger's state has no such counts in '{part}': {name!r}: {reprlib.repr(row)}"
            )
    return {
        str(name): kind(**{each.name: row[each.name] for each in fields(kind) if each.name in row})
        for name, row in rows.items()
    }


def _fits(name: str, row: Mapping[str, Any]) -> bool:
    if name in _LATER and name not in row:
        return True
    return is_number(row.get(name)) or (name == "largest_error" and row.get(name, math.nan) is None)


def _larger(first: float | None, second: float | None) -> float | None:
    known = [error for error in (first, second) if error is not None]
    if any(math.isnan(error) for error in known):
        return math.nan
    return max(known, default=None)
