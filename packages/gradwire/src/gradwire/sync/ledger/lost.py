"""The relative errors of encoding: by bucket and by parameter, over the measured steps.

Where residuals are kept every step is measured, and models have thousands of parameters: so the parameters of
a bucket are counted together, and those of many steps at once.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Self

import torch

from gradwire.exchange import Norms
from gradwire.fields import keyed, of, real
from gradwire.sync.ledger.counts import SOURCE

# The share of a gradient's norm that encoding lost: whose it is, and in which steps it is measured.

_FIRST, _EVERY = 2, 64
_ROUNDING = 0.25
"""Up to this part of what was encoded may vanish in rounding."""


def sampled(step: int) -> bool:
    """Return whether a step, counted from 1 up, is measured if that isn't free; the same on all ranks.

    The steps 2, 4, 8, 16 and 32, and then every 64th: enough to speak early in a short run, at a cost that
    hundreds of steps share in a long one.
    """
    return step % _EVERY == 0 or (step >= _FIRST and step & (step - 1) == 0)


def share_of(gradient: float, lost: float) -> float | None:
    """Return the relative error of a gradient, from squares of norms; 0/0 is 0, and None stands for x/0."""
    if lost == 0:
        return 0.0
    return math.sqrt(lost / gradient) if gradient else None


@dataclass(frozen=True)
class Layout:
    """The places of parameters in a bucket.

    Attributes
    ----------
    names
        The parameters, in their order in the bucket.
    counts
        How many floats each has.
    groups
        With which others each belongs together, in whatever words; of a group one warning tells.
    copies
        How often this repeats: FSDP lays out a part of every parameter for each rank.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    groups: tuple[Hashable, ...]
    copies: int = 1

    @cached_property
    def norms(self) -> Norms:
        """The norms that an exchange of the bucket measures, until the next one does."""
        return Norms([0, *accumulate(self.counts * self.copies)])


def is_rounding(encoded: float, decoded: float, lost: float) -> bool:
    """Return whether what was lost is rounding, which averages out over steps, from sums of squares.

    Rounding is nearly orthogonal to what is rounded, and smaller. Where most values become 0 what is lost is
    the values themselves: ``<lost, encoded> / <encoded, encoded>``, by the law of cosines, is near 1 then.
    And where more is lost than there was, noise has taken the place of the gradient.
    """
    vanished = (encoded + lost - decoded) / 2
    return lost <= encoded and vanished <= _ROUNDING * encoded


@dataclass(frozen=True, slots=True)
class ErrorSums:
    """The measurements of one exchange: sums of squares, float64.

    ``sums`` has a row for each of this rank's gradient, what was lost of it, what was encoded and what was
    decoded, and a column for each parameter. ``own`` and ``lost`` are the sums of the first two rows.
    """

    layout: Layout
    sums: torch.Tensor
    own: float
    lost: float

    @classmethod
    def of(cls, layout: Layout, sums: torch.Tensor) -> ErrorSums:
        """Copy what an exchange has measured."""
        by_parameter = sums.view(len(sums), layout.copies, -1).sum(1)
        own, lost, *_ = by_parameter.sum(1).tolist()
        return cls(layout, by_parameter, own, lost)

    @property
    def usable(self) -> bool:
        """Whether all was finite; the step is no sample otherwise."""
        return math.isfinite(self.own + self.lost)

    def shares(self) -> Iterator[tuple[str, Hashable, float | None, bool]]:
        """Yield every parameter's name, its group, the share it lost and whether that is mere rounding."""
        sums = self.sums.T.tolist()
        for name, group, (own, lost, encoded, decoded) in zip(
            self.layout.names, self.layout.groups, sums, strict=True
        ):
            yield name, group, share_of(own, lost), is_rounding(encoded, decoded, lost)


@dataclass(slots=True)
class LostCounts:
    """The share of a norm that was lost, over the ``samples`` steps in which it was measured.

    In ``without_own`` further steps this rank's own gradient was 0, and its encodings lost something of what
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

    def add(self, later: LostCounts) -> None:
        """Count what was counted elsewhere since."""
        self.samples += later.samples
        self.share_sum += later.share_sum
        self.largest = max(self.largest, later.largest)
        self.last = later.last if later.samples else self.last
        self.without_own += later.without_own


_TOGETHER = 64
"""The steps that are counted at once, and kept until then."""


@dataclass(frozen=True, slots=True)
class StepShares:
    """The shares of one step, None for those whose own gradient was 0; empty where nothing was measured."""

    total: float | None = None
    buckets: Mapping[str, float | None] = field(default_factory=dict)
    sums: Mapping[tuple[str, ...], torch.Tensor] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, float | None]:
        """The shares by parameter."""
        return {
            name: share_of(own, lost)
            for names, sums in self.sums.items()
            for name, own, lost in zip(names, *sums[:2].tolist(), strict=True)
        }

    def __bool__(self) -> bool:
        return bool(self.buckets)


class LostBook:
    """Shares over all measured steps: of the whole gradient, by bucket and by parameter."""

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
        """The shares by parameter."""
        for names in list(self._waiting):
            self._settle(names)
        return self._parameters

    def count(self, measured: Sequence[tuple[str, ErrorSums]]) -> StepShares:
        """Count what the exchanges of one step have measured, by bucket; return the step's shares.

        A step in which anything was not finite is no sample.
        """
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
        return StepShares(total, buckets, sums)

    def copy(self) -> LostBook:
        """Return a book that later counts leave alone."""
        return LostBook(self.total, self.buckets, self.parameters)

    def worst(self, count: int) -> list[tuple[str, LostCounts]]:
        """Return the parameters that lost the largest shares on average, the worst one first."""
        known = [(name, counts) for name, counts in self.parameters.items() if counts.mean]
        return sorted(known, key=lambda row: row[1].mean or 0.0, reverse=True)[:count]

    def state(self) -> dict[str, Any]:
        """Return plain dictionaries, numbers and strings."""
        return {
            "total": asdict(self.total),
            "buckets": {name: asdict(counts) for name, counts in self.buckets.items()},
            "parameters": {name: asdict(counts) for name, counts in self.parameters.items()},
        }

    @classmethod
    def of_state(cls, state: object) -> Self:
        """Read what ``state`` returned. Raises ``StateError``."""
        given = SOURCE.fields(state, "total", "buckets", "parameters")
        return cls(*(given.get(name, each) for name, each in _KINDS))

    def _settle(self, names: tuple[str, ...]) -> None:
        """Count the steps of a bucket's parameters that wait for it."""
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
