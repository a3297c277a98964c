"""What a ledger counts: a bucket's bytes and seconds, a reason's bypasses, and both for a span of steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from gradwire.costs import ExchangeCost, Scales
from gradwire.errors import StateError
from gradwire.fields import Source, anything, keyed, of, only, optional, real, whole

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
        given = SOURCE.fields(state, "buckets", "bypasses")
        return cls(given.get("buckets", keyed(_bucket_counts)), given.get("bypasses", keyed(_BYPASS)))


SOURCE = Source("a ledger's state", "leave it out, and the ledger counts anew", StateError)
_NUMBER = real(-(2.0**80), 2.0**80)
"""Seconds and bytes, whose sums stay finite."""
_COST_NAMES = [each.name for each in fields(ExchangeCost)]
_EXPONENT = optional(whole(-(1 << 31)))
_COST = of(
    ExchangeCost,
    *(name for name in _COST_NAMES if name not in _LATER_FIELDS),
    scales=of(Scales, smallest=_EXPONENT, largest=_EXPONENT),
    **{each.name: _NUMBER for each in fields(ExchangeCost) if each.type == "float"},
)
_BUCKET_NAMES = [each.name for each in fields(BucketCounts)]
_BUCKET = of(BucketCounts, *_BUCKET_NAMES, exposed_s=_NUMBER, cost=only(_COST_NAMES, _COST))
_BYPASS = of(BypassCounts, "count", "nbytes")


def _bucket_counts(row: object) -> BucketCounts:
    """Read counts; versions 1 and 2 have no cost, and told no encoding from decoding."""
    given = SOURCE.fields(row)
    if given.get("cost", anything, None) is not None or given.get("codec_s", anything, None) is None:
        return only(_BUCKET_NAMES, _BUCKET)(row)
    cost = ExchangeCost(
        encode_s=given.get("codec_s", _NUMBER),
        wait_s=given.get("link_s", _NUMBER),
        raw_nbytes=given.get("raw_nbytes", _NUMBER),
        wire_nbytes=given.get("wire_nbytes", _NUMBER),
        nonfinite=given.get("nonfinite", whole(), 0),
    )
    cost.took(given.get("exchange_s", _NUMBER))
    exchanges, gradient_nbytes = (given.get(name, whole()) for name in ("exchanges", "gradient_nbytes"))
    return BucketCounts(exchanges, gradient_nbytes, given.get("exposed_s", _NUMBER), cost)
