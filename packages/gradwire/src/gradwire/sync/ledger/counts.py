"""The counts of a ledger: bytes and seconds by bucket, and bypasses by reason."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol

from gradwire.costs import ExchangeCost, Scales
from gradwire.errors import StateError
from gradwire.fields import Source, anything, keyed, line, of, only, optional, real, whole
from gradwire.plan import Plan


class PlanChoice(Protocol):
    """A run's choice of a plan, as the ledger records it. ``autotune`` implements this protocol."""

    @property
    def plan(self) -> Plan:
        """The chosen plan."""

    @property
    def step_s(self) -> float:
        """The expected step time, in seconds."""

    @property
    def uncompressed_s(self) -> float:
        """The expected step time without compression, in seconds."""

    @property
    def reason(self) -> str:
        """The reason for the choice, as a sentence for users."""

    def to_json(self) -> str:
        """Return the choice as the text of a JSON object."""


_LATER_FIELDS = {"device_nbytes", "scales"}  # fields that earlier states of counts and costs lack


@dataclass(frozen=True, slots=True)
class BucketCounts:
    """The costs of one bucket's exchanges on this rank. Counts can be added.

    Attributes
    ----------
    exchanges
        The number of exchanges.
    gradient_nbytes
        The bytes of float32 gradient that were averaged; 0 for exchanges of weights. A ring of p ranks sends
        ``2 (p - 1) / p`` of a gradient, so ``cost.raw_nbytes`` differs.
    exposed_s
        Seconds for which the training thread waited; all other seconds overlapped with computation.
    cost
        The total seconds and bytes of the exchanges, overlapped or not.
    """

    exchanges: int = 0
    gradient_nbytes: int = 0
    exposed_s: float = 0.0
    cost: ExchangeCost = field(default_factory=ExchangeCost)

    def figures(self) -> dict[str, float]:
        """Return the metrics that sinks write, by name, including the scales if there are any."""
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
    """The number and bytes of gradients that bypassed the codec for one reason."""

    count: int = 0
    nbytes: int = 0

    def __add__(self, other: BypassCounts) -> BypassCounts:
        return BypassCounts(self.count + other.count, self.nbytes + other.nbytes)


@dataclass(slots=True)
class Tally:
    """Counts by bucket and bypasses by reason, in order of first occurrence."""

    buckets: dict[str, BucketCounts] = field(default_factory=dict)
    bypasses: dict[str, BypassCounts] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.buckets or self.bypasses)

    def add(self, other: Tally) -> None:
        """Add the counts of ``other``."""
        for bucket, counts in other.buckets.items():
            self.add_bucket(bucket, counts)
        for reason, bypass in other.bypasses.items():
            self.add_bypass(reason, bypass)

    def add_bucket(self, bucket: str, counts: BucketCounts) -> None:
        """Add counts to a bucket."""
        self.buckets[bucket] = self.buckets.get(bucket, BucketCounts()) + counts

    def add_bypass(self, reason: str, bypass: BypassCounts) -> None:
        """Add bypasses to a reason."""
        self.bypasses[reason] = self.bypasses.get(reason, BypassCounts()) + bypass

    @property
    def total(self) -> BucketCounts:
        """The sum of the counts over all buckets."""
        return sum(self.buckets.values(), BucketCounts())

    @property
    def bypassed(self) -> BypassCounts:
        """The sum of the bypasses over all reasons."""
        return sum(self.bypasses.values(), BypassCounts())

    def state(self) -> dict[str, Any]:
        """Return the counts as plain dictionaries, numbers and strings."""
        return {
            "buckets": {bucket: asdict(counts) for bucket, counts in self.buckets.items()},
            "bypasses": {reason: asdict(counts) for reason, counts in self.bypasses.items()},
        }

    @classmethod
    def of_state(cls, state: object) -> Tally:
        """Read a result of ``state``. Raises ``StateError``."""
        given = SOURCE.fields(state, "buckets", "bypasses")
        return cls(given.get("buckets", keyed(_bucket_counts)), given.get("bypasses", keyed(_BYPASS)))


SOURCE = Source("a ledger's state", "omit this state, so the ledger starts from zero", StateError)
_NUMBER = real(-(2.0**80), 2.0**80)  # a number of seconds or bytes, bounded so that sums are finite
_COST_NAMES = [each.name for each in fields(ExchangeCost)]
_EXPONENT = optional(whole(-(1 << 31)))
_COST = of(
    ExchangeCost,
    *(name for name in _COST_NAMES if name not in _LATER_FIELDS),
    scales=of(Scales, smallest=_EXPONENT, largest=_EXPONENT),
    **{each.name: _NUMBER for each in fields(ExchangeCost) if each.type == "float"},
)
_BUCKET_NAMES = [each.name for each in fields(BucketCounts)]
_BUCKET = of(
    BucketCounts,
    *(name for name in _BUCKET_NAMES if name not in _LATER_FIELDS),
    exposed_s=_NUMBER,
    cost=only(_COST_NAMES, _COST),
)
_BYPASS = of(BypassCounts, "count", "nbytes")


def _bucket_counts(row: object) -> BucketCounts:
    """Read counts from a state; versions 1 and 2 have no ``cost``, and one time for encoding and decoding."""
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


@dataclass(frozen=True, slots=True)
class Decided:
    """A run's choice of a plan: first step, reason, the plan as JSON, and expected step times in seconds."""

    step: int
    reason: str
    plan: str
    step_s: float  # with the plan
    uncompressed_s: float  # without compression

    @classmethod
    def of_state(cls, row: object) -> Decided:
        """Read a result of ``asdict``. Raises ``StateError``."""
        return SOURCE.read(row, of(cls, plan=_plan, step_s=_SECONDS, uncompressed_s=_SECONDS))


_SECONDS = real(0.0, finite=False)


def _plan(text: object) -> str:
    Plan.from_json(line(text))
    return line(text)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The cost of one step, or the total cost of several steps.

    The three times add up to the wall time of the training thread. During a wait, the activity of the
    exchange is unknown. So a wait of ``w`` seconds is divided in proportion to the times of the whole
    exchange: ``codec_s`` gets ``w * (encode_s + decode_s) / total_s``, and ``exposed_s`` the rest. In a
    synchronous step, ``w`` is the time of the whole exchange; in a pipelined step, only the part that did not
    overlap with computation.

    Bytes are the bytes of the exchanges that this step waited for. A pipelined step waits for an earlier
    step's gradient, so the sum over all steps is complete only with the record of ``drain()``.

    Attributes
    ----------
    loss
        Mean loss over ``steps``; NaN if none was computed (a server, a drain).
    compute_s
        Seconds of forward, backward, update and copies.
    codec_s
        Seconds of waiting while chunks were encoded and decoded.
    exposed_s
        Seconds of waiting for the network and the peers.
    cost
        Seconds and bytes of the exchanges, overlapped or not; in a synchronous step, ``cost.total_s`` is
        ``wait_s``.
    steps
        The number of steps in the sum.
    correction_s
        Seconds of ``compute_s`` that an eager pipeline spent on its virtual updates.
    """

    loss: float = math.nan
    compute_s: float = 0.0
    codec_s: float = 0.0
    exposed_s: float = 0.0
    cost: ExchangeCost = field(default_factory=ExchangeCost)
    steps: int = 0
    correction_s: float = 0.0

    @classmethod
    def of_wait(cls, wait_s: float, cost: ExchangeCost) -> StepRecord:
        """Return the record of ``wait_s`` seconds spent waiting for one exchange."""
        codec_share = cost.codec_s / max(cost.total_s, 1e-9)
        codec_s = wait_s * min(codec_share, 1.0)
        return cls(codec_s=codec_s, exposed_s=wait_s - codec_s, cost=cost)

    @property
    def wait_s(self) -> float:
        """Seconds for which the training thread waited."""
        return self.codec_s + self.exposed_s

    @property
    def step_s(self) -> float:
        """The wall time of the training thread, in seconds."""
        return self.compute_s + self.wait_s

    def within(
        self, wall_s: float, *, loss: float = math.nan, steps: int = 1, correction_s: float = 0.0
    ) -> StepRecord:
        """Return the record of ``steps`` steps that took ``wall_s`` seconds in total, with these waits."""
        compute_s = max(wall_s - self.wait_s, 0.0)
        return replace(self, loss=loss, steps=steps, compute_s=compute_s, correction_s=correction_s)

    def __add__(self, other: StepRecord) -> StepRecord:
        steps = self.steps + other.steps
        losses = [(record.loss, record.steps) for record in (self, other) if record.steps]
        return StepRecord(
            loss=sum(loss * count for loss, count in losses) / steps if steps else math.nan,
            compute_s=self.compute_s + other.compute_s,
            codec_s=self.codec_s + other.codec_s,
            exposed_s=self.exposed_s + other.exposed_s,
            cost=self.cost + other.cost,
            steps=steps,
            correction_s=self.correction_s + other.correction_s,
        )
