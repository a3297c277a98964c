"""The relative errors of encoding a gradient, by bucket and by parameter, over the measured steps.

If the plan keeps residuals, every step is measured, and models have thousands of parameters. To save time,
the parameters of a bucket are processed together, for many steps at once.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch

from gradwire.fields import keyed, of, real
from gradwire.sync.layout import Layout
from gradwire.sync.ledger.counts import SOURCE

_FIRST, _EVERY = 2, 64
_ROUNDING = 0.25  # the largest share of the encoded values that counts as lost in rounding alone


def sampled(step: int) -> bool:
    """Return whether a step, counted from 1, is measured if measuring has a cost; the same on all ranks.

    The steps 2, 4, 8, 16, 32 and every 64th step give early results in a short run, and cost little in a long
    run.
    """
    return step % _EVERY == 0 or (step >= _FIRST and step & (step - 1) == 0)


def share_of(gradient: float, lost: float) -> float | None:
    """Return the relative error of a gradient from squared norms. 0/0 is 0, and x/0 is None."""
    if lost == 0:
        return 0.0
    return math.sqrt(lost / gradient) if gradient else None


def is_rounding(encoded: float, decoded: float, lost: float) -> bool:
    """Return whether an encoding error with these sums of squares is rounding, which averages out over steps.

    A rounding error is nearly orthogonal to the rounded values, and smaller. If most values become 0, the
    error is nearly the values themselves. The ratio ``<lost, encoded> / <encoded, encoded>``, computed by the
    law of cosines, is then near 1. If the error is larger than the values, noise has replaced the gradient.
    """
    vanished = (encoded + lost - decoded) / 2
    return lost <= encoded and vanished <= _ROUNDING * encoded


@dataclass(frozen=True, slots=True)
class ErrorSums:
    """The squared norms from one exchange, as float64.

    ``sums`` has four rows (this rank's gradient, its encoding error, the encoded values, the decoded values)
    and one column per parameter. ``own`` and ``lost`` are the sums of the first two rows. ``is_sampled`` is
    whether the step is ``sampled`` in the count of the sync, from which the ledger's count may differ.
    """

    layout: Layout
    sums: torch.Tensor
    own: float
    lost: float
    is_sampled: bool = True

    @classmethod
    def of(cls, layout: Layout, sums: torch.Tensor, *, is_sampled: bool = True) -> ErrorSums:
        """Return the measurements of an exchange, summed over the layout's copies."""
        by_parameter = sums.view(len(sums), layout.copies, -1).sum(1)
        own, lost, *_ = by_parameter.sum(1).tolist()
        return cls(layout, by_parameter, own, lost, is_sampled)

    @property
    def usable(self) -> bool:
        """Whether all sums are finite. A step with a non-finite sum is not sampled."""
        return math.isfinite(self.own + self.lost)

    def shares(self) -> Iterator[tuple[str, Hashable, float | None, bool]]:
        """Yield a name, a group, a relative error, and whether the error is mere rounding, per parameter."""
        sums = self.sums.T.tolist()
        for name, group, (own, lost, encoded, decoded) in zip(
            self.layout.names, self.layout.groups, sums, strict=True
        ):
            yield name, group, share_of(own, lost), is_rounding(encoded, decoded, lost)


@dataclass(slots=True)
class LostCounts:
    """The statistics of a relative error over the ``samples`` steps in which the error was measured.

    In ``without_own`` further steps, this rank's own gradient was 0, and only values from other ranks had an
    encoding error. Such a step has no relative error, and is excluded from the other statistics.
    """

    samples: int = 0
    share_sum: float = 0.0
    largest: float = 0.0
    last: float = 0.0
    without_own: int = 0

    @property
    def mean(self) -> float | None:
        """The mean relative error, or None without a sample."""
        return self.share_sum / self.samples if self.samples else None

    def count(self, share: float | None) -> None:
        """Add one step's relative error, or None if this rank's gradient was 0."""
        self.add(LostCounts(without_own=1) if share is None else LostCounts(1, share, share, share))

    def add(self, later: LostCounts) -> None:
        """Add the statistics of later steps."""
        self.samples += later.samples
        self.share_sum += later.share_sum
        self.largest = max(self.largest, later.largest)
        self.last = later.last if later.samples else self.last
        self.without_own += later.without_own


_TOGETHER = 64  # the number of steps whose sums are stored and then processed together


@dataclass(frozen=True, slots=True)
class StepShares:
    """The relative errors of one step, or empty if not measured. An error is None if the gradient was 0."""

    total: float | None = None
    buckets: Mapping[str, float | None] = field(default_factory=dict)
    sums: Mapping[tuple[str, ...], torch.Tensor] = field(default_factory=dict)
    is_sampled: bool = False

    @property
    def parameters(self) -> dict[str, float | None]:
        """The relative errors by parameter."""
        return {
            name: share_of(own, lost)
            for names, sums in self.sums.items()
            for name, own, lost in zip(names, *sums[:2].tolist(), strict=True)
        }

    def __bool__(self) -> bool:
        return bool(self.buckets)


class LostBook:
    """The relative errors over all measured steps, in total, by bucket, and by parameter."""

    def __init__(
        self,
        total: LostCounts | None = None,
        buckets: Mapping[str, LostCounts] | None = None,
        parameters: Mapping[str, LostCounts] | None = None,
    ) -> None:
        self.total = replace(total or LostCounts())
        self.buckets = {name: replace(counts) for name, counts in (buckets or {}).items()}
        self._parameters = {name: replace(counts) for name, counts in (parameters or {}).items()}
        self._waiting: dict[tuple[str, ...], list[torch.Tensor]] = {}

    @property
    def parameters(self) -> dict[str, LostCounts]:
        """The relative errors by parameter."""
        for names in list(self._waiting):
            self._settle(names)
        return self._parameters

    def count(self, measured: Sequence[tuple[str, ErrorSums]]) -> StepShares:
        """Add one step's measurements, by bucket, and return the step's relative errors."""
        if not measured or not all(each.usable for _, each in measured):
            return StepShares()
        pairs: dict[str, tuple[float, float]] = {}
        sums: dict[tuple[str, ...], torch.Tensor] = {}
        for bucket, each in measured:
            own, lost = pairs.get(bucket, (0.0, 0.0))
            pairs[bucket] = own + each.own, lost + each.lost
            names = each.layout.names
            sums[names] = sums[names] + each.sums if names in sums else each.sums
        total = share_of(sum(own for own, _ in pairs.values()), sum(lost for _, lost in pairs.values()))
        self.total.count(total)
        buckets = {bucket: share_of(*pair) for bucket, pair in pairs.items()}
        for bucket, share in buckets.items():
            self.buckets.setdefault(bucket, LostCounts()).count(share)
        for names, each_sum in sums.items():
            waiting = self._waiting.setdefault(names, [])
            waiting.append(each_sum[:2])
            if len(waiting) == _TOGETHER:
                self._settle(names)
        return StepShares(total, buckets, sums, any(each.is_sampled for _, each in measured))

    def copy(self) -> LostBook:
        """Return a copy that later counts don't change."""
        return LostBook(self.total, self.buckets, self.parameters)

    def worst(self, count: int) -> list[tuple[str, LostCounts]]:
        """Return the parameters with the largest mean relative errors, the largest first."""
        known = [(name, counts) for name, counts in self.parameters.items() if counts.mean]
        return sorted(known, key=lambda row: row[1].mean or 0.0, reverse=True)[:count]

    def state(self) -> dict[str, Any]:
        """Return the statistics as plain dictionaries, numbers and strings."""
        return {
            "total": asdict(self.total),
            "buckets": {name: asdict(counts) for name, counts in self.buckets.items()},
            "parameters": {name: asdict(counts) for name, counts in self.parameters.items()},
        }

    @classmethod
    def of_state(cls, state: object) -> LostBook:
        """Read a result of ``state``. Raises ``StateError``."""
        given = SOURCE.fields(state, "total", "buckets", "parameters")
        return cls(*(given.get(name, each) for name, each in _KINDS))

    def _settle(self, names: tuple[str, ...]) -> None:
        steps = torch.stack(self._waiting.pop(names))
        own, lost = steps[:, 0], steps[:, 1]
        shares = torch.sqrt(lost / own).masked_fill_(lost == 0, 0.0)
        known = shares.isfinite()
        counted = shares.masked_fill(~known, 0.0)
        latest = (known * torch.arange(len(steps), device="cpu")[:, None]).argmax(0)
        rows = (
            known.sum(0), counted.sum(0), counted.amax(0), counted.gather(0, latest[None])[0], (~known).sum(0)
        )  # fmt: skip
        for name, *row in zip(names, *(each.tolist() for each in rows), strict=True):
            self._parameters.setdefault(name, LostCounts()).add(LostCounts(*row))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LostBook) and self.state() == other.state()

    __hash__ = None  # type: ignore[assignment]


def _count(value: object) -> int:
    return int(real(0.0)(value))  # earlier states have floats


_FIELDS = [each.name for each in fields(LostCounts)]
_COUNTS = of(LostCounts, *_FIELDS, samples=_count, without_own=_count)
_KINDS: Any = (("total", _COUNTS), ("buckets", keyed(_COUNTS)), ("parameters", keyed(_COUNTS)))
