"""What a ledger knows of the norm that encoding lost: by bucket and by parameter, over the measured steps."""

from __future__ import annotations

import math
import reprlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from gradwire.errors import StateError
from gradwire.training.shares import Measured, share_of
from gradwire.units import is_number

Pair = tuple[float, float]


@dataclass(slots=True)
class LostCounts:
    """The share of a norm that was lost, over the steps in which it was measured.

    Attributes
    ----------
    samples
        How many steps.
    share_sum, largest, last
        The sum of their shares, the largest one and that of the last step.
    without_own
        In how many further steps this rank's own gradient was 0, and its encodings lost something of what
        came from others. Such a step has no share, and is in no other figure.
    """

    samples: int = 0
    share_sum: float = 0.0
    largest: float = 0.0
    last: float = 0.0
    without_own: int = 0

    @property
    def mean(self) -> float | None:
        """The mean of the shares; None where there is none."""
        return self.share_sum / self.samples if self.samples else None

    def count(self, share: float | None) -> None:
        """Count one step's share, None where the own gradient was 0."""
        if share is None:
            self.without_own += 1
            return
        self.samples += 1
        self.share_sum += share
        self.largest = max(self.largest, share)
        self.last = share


@dataclass(frozen=True, slots=True)
class StepShares:
    """The shares of one step, None for those whose own gradient was 0; empty where nothing was measured."""

    total: float | None = None
    buckets: Mapping[str, float | None] = field(default_factory=dict)
    parameters: Mapping[str, float | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.buckets)


@dataclass(slots=True)
class LostBook:
    """Shares over all measured steps: of the whole gradient, by bucket and by parameter."""

    total: LostCounts = field(default_factory=LostCounts)
    buckets: dict[str, LostCounts] = field(default_factory=dict)
    parameters: dict[str, LostCounts] = field(default_factory=dict)

    def count(self, measured: Sequence[tuple[str, Measured]]) -> StepShares:
        """Count what the exchanges of one step have measured, by bucket; return the step's shares.

        A step in which anything was not finite is no sample.
        """
        if not measured or not all(each.usable for _, each in measured):
            return StepShares()
        buckets = _shares((bucket, (sum(each.own), sum(each.lost))) for bucket, each in measured)
        parameters = _shares(
            (name, pair)
            for _, each in measured
            for name, pair in zip(each.layout.names, zip(each.own, each.lost, strict=True), strict=True)
        )
        total = _shares(("", (sum(each.own), sum(each.lost))) for _, each in measured)[""]
        self.total.count(total)
        for counts, shares in ((self.buckets, buckets), (self.parameters, parameters)):
            for name, share in shares.items():
                if name not in counts:
                    counts[name] = LostCounts()
                counts[name].count(share)
        return StepShares(total, buckets, parameters)

    def copy(self) -> LostBook:
        """Return a book that later counts leave alone."""
        return LostBook(
            replace(self.total),
            {name: replace(counts) for name, counts in self.buckets.items()},
            {name: replace(counts) for name, counts in self.parameters.items()},
        )

    def worst(self, count: int) -> list[tuple[str, LostCounts]]:
        """Return the parameters that lost the largest shares on average, the worst one first."""
        known = [(name, counts) for name, counts in self.parameters.items() if counts.mean]
        return sorted(known, key=lambda row: row[1].mean or 0.0, reverse=True)[:count]

    def state(self) -> dict[str, Any]:
        """Return plain dictionaries, numbers and strings."""
        return asdict(self)

    @classmethod
    def of_state(cls, state: object) -> Self:
        """Read what ``state`` returned. Raises ``StateError``."""
        if not isinstance(state, Mapping):
            raise StateError(f"a ledger's state has shares in 'lost', but this one has {reprlib.repr(state)}")
        rows = [state.get("buckets"), state.get("parameters")]
        if not all(isinstance(each, Mapping) for each in rows):
            raise StateError(f"a ledger's state has shares by bucket and parameter, but not {_short(state)}")
        buckets, parameters = (
            {str(name): _counts_of(row) for name, row in each.items()} for each in rows if each is not None
        )
        return cls(_counts_of(state.get("total")), buckets, parameters)


def _short(state: object) -> str:
    return reprlib.repr(state)


def _shares(pairs: Iterable[tuple[str, Pair]]) -> dict[str, float | None]:
    """Return the share of every name, over all of its sums of squares."""
    sums = defaultdict[str, Pair](lambda: (0.0, 0.0))
    for name, (own, lost) in pairs:
        before = sums[name]
        sums[name] = before[0] + own, before[1] + lost
    return {name: share_of(*both) for name, both in sums.items()}


def _counts_of(row: object) -> LostCounts:
    names = [each.name for each in fields(LostCounts)]
    if not isinstance(row, Mapping) or not all(
        is_number(row.get(name)) and math.isfinite(row[name]) for name in names
    ):
        raise StateError(f"a ledger's state has no such shares in 'lost': {reprlib.repr(row)}")
    return LostCounts(**{name: row[name] for name in names})
