"""What a ledger counts: a bucket's bytes and seconds, a reason's bypasses, and both for a span of steps."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self, TypeVar

from gradwire.costs import ExchangeCost, Scales
from gradwire.errors import StateError
from gradwire.units import is_number

_Row = TypeVar("_Row")
_LATER_FIELDS = {"device_nbytes", "scales"}  # those that the costs of earlier states lack


@dataclass(frozen=True, slots=True)
class BucketCounts:
    """What the exchanges of one bucket cost this rank; counts add up.

    Attributes
    ----------
    exchanges
        How many there were.
    gradient_nbytes
        Bytes of float32 gradient that were averaged. 0 where weights travelled. A ring of p ranks sends
        ``2 (p - 1) / p`` of a gradient, so ``cost.raw_nbytes`` differs.
    exposed_s
        Seconds for which the training thread stood still; the rest was hidden behind its own work.
    cost
        Their seconds and bytes, hidden or not.
    """

    exchanges: int = 0
    gradient_nbytes: int = 0
    exposed_s: float = 0.0
    cost: ExchangeCost = field(default_factory=ExchangeCost)

    def figures(self) -> dict[str, float]:
        """Return the figures that lines and tags have, by name; those of scales if there are any."""
        cost = self.cost
        scales = {name: number for name, number in asdict(cost.scales).items() if number is not None}
        return {
            "exchanges": self.exchanges,
            "gradient_nbytes": self.gradient_nbytes,
            "raw_nbytes": cost.raw_nbytes,
            "wire_nbytes": cost.wire_nbytes,
            "device_nbytes": cost.device_nbytes,
            "ratio": cost.ratio,
            "codec_s": cost.codec_s,
            "wait_s": cost.wait_s,
            "exposed_s": self.exposed_s,
            "exchange_s": cost.total_s,
            "nonfinite": cost.nonfinite,
        } | ({f"scales_{name}": number for name, number in scales.items()} if cost.scales else {})

    def __add__(self, other: BucketCounts) -> BucketCounts:
        return BucketCounts(
            self.exchanges + other.exchanges,
            self.gradient_nbytes + other.gradient_nbytes,
            self.exposed_s + other.exposed_s,
            self.cost + other.cost,
        )


@dataclass(frozen=True, slots=True)
class BypassCounts:
    """How often gradients went around the codec for one reason, and how many bytes of them."""

    count: int = 0
    nbytes: int = 0

    def __add__(self, other: BypassCounts) -> BypassCounts:
        return BypassCounts(self.count + other.count, self.nbytes + other.nbytes)


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
        return cls(_rows(state, "buckets", _bucket_counts), _rows(state, "bypasses", _bypass_counts))


def _rows(state: object, part: str, read: Callable[[Mapping[str, Any]], _Row]) -> dict[str, _Row]:
    rows = state.get(part) if isinstance(state, Mapping) else None
    if not isinstance(rows, Mapping):
        raise StateError(f"a ledger's state has counts in '{part}', but this one has {reprlib.repr(rows)}")
    counts = {}
    for name, row in rows.items():
        try:
            counts[str(name)] = read(row)
        except (KeyError, TypeError) as error:
            raise StateError(
                f"a ledger's state has no such counts in '{part}': {name!r}: {reprlib.repr(row)}"
            ) from error
    return counts


def _bucket_counts(row: Mapping[str, Any]) -> BucketCounts:
    return BucketCounts(
        _number(row, "exchanges"),
        _number(row, "gradient_nbytes"),
        _number(row, "exposed_s"),
        _cost(row["cost"]) if "cost" in row else _earlier_cost(row),
    )


def _cost(row: Mapping[str, Any]) -> ExchangeCost:
    """Read a cost; earlier ones have fewer fields, which were 0 then."""
    names = {each.name for each in fields(ExchangeCost)} - (_LATER_FIELDS - {*row}) - {"scales"}
    scales = _scales(row["scales"]) if "scales" in row else Scales()
    return ExchangeCost(**{name: _number(row, name) for name in names}, scales=scales)


def _scales(row: object) -> Scales:
    if not isinstance(row, Mapping):
        raise TypeError("scales are no row")
    return Scales(**{str(name): _number(row, name) for name in row if row[name] is not None})


def _earlier_cost(row: Mapping[str, Any]) -> ExchangeCost:
    """Read what versions 1 and 2 saved: no difference between encoding and decoding."""
    cost = ExchangeCost(
        encode_s=_number(row, "codec_s"),
        wait_s=_number(row, "link_s"),
        raw_nbytes=_number(row, "raw_nbytes"),
        wire_nbytes=_number(row, "wire_nbytes"),
        nonfinite=_number(row, "nonfinite") if "nonfinite" in row else 0,
    )
    cost.took(_number(row, "exchange_s"))
    return cost


def _bypass_counts(row: Mapping[str, Any]) -> BypassCounts:
    return BypassCounts(_number(row, "count"), _number(row, "nbytes"))


def _number(row: Mapping[str, Any], name: str) -> Any:
    if not is_number(row[name]):
        raise TypeError(f"{name} is no number")
    return row[name]
