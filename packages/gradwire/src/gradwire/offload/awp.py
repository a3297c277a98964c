"""Adaptive weight precision (AWP): a layer gets more bits when its weights' norm stops changing."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Any, Literal

from gradwire.codecs.spec import is_real, is_whole
from gradwire.errors import SpecError, StateError, refuse
from gradwire.fields import Source, one_of, optional, pair, real, rows, whole
from gradwire.offload.policies import FORMATS, Policy
from gradwire.units import is_number

AUTO: Literal["auto"] = "auto"
"""The value of ``threshold`` with which an AWP measures the threshold itself."""
_WATCHED_BITS = 32  # the bits in which all layers are sent while the threshold is measured
_WATCHED_INTERVALS = 2
"""The default length of the threshold's measurement, in intervals: an epoch if an interval is half of one."""
_NEARLY_ALL = 0.95
"""The fraction of changes below the threshold from which AWP warns, because bits then grow with time only."""
_VERSION = 1
_SOURCE = Source("the state of an AWP", "resume with the policy that was saved", StateError)


class AWP(Policy):
    """A policy that gives a layer more bits once the layer's norm has changed little for some batches.

    Formula, for each layer after each batch i: delta = (|W_i| - |W_(i-1)|) / |W_(i-1)|, where |W| is the l2
    norm of the layer's weights. If delta < threshold, the layer's count increases by one. When the count
    reaches ``interval``, the layer's bits increase by ``step_bits``, up to ``max_bits``, and the count is
    reset to 0. A delta of NaN leaves the count unchanged. Source: A2DTWP, algorithm 1.

    Parameters
    ----------
    threshold
        T: -5e-2 for AlexNet, -2e-3 for VGG and -2e-5 for ResNet in the paper. ``calibrate_threshold``
        computes T from recorded norms. With ``"auto"``, all layers are sent in 32 bits in the first
        ``watched`` batches, and T becomes the mean change of the layers' norms in these batches (section
        V-A).
    interval
        INTERVAL, in batches: 4000, 4000 and 2000 in the paper.
    step_bits, start_bits, max_bits
        N, by which bits increase, and the first and the largest number of bits: multiples of 8 up to 32.
    watched
        The number of batches in which ``"auto"`` measures T; two intervals by default. The validation error
        must drop within these batches.

    Warns
    -----
    UserWarning
        If nearly all changes in the first interval after the measurement of T are below T. Then each layer
        gets more bits after a fixed number of batches, whatever its weights are.

    Attributes
    ----------
    threshold
        T; None until ``"auto"`` has measured it.
    bits, counts
        The bits and the count of each layer; empty before the first batch.

    Examples
    --------
    >>> policy = AWP(threshold=0.01, interval=2)
    >>> [policy.observe([norm]) for norm in (1.0, 1.1, 1.1, 1.1)]
    [[8], [8], [8], [16]]
    """

    wants_norms = True

    def __init__(
        self,
        *,
        threshold: float | Literal["auto"],
        interval: int,
        step_bits: int = 8,
        start_bits: int = 8,
        max_bits: int = 32,
        watched: int | None = None,
    ) -> None:
        if threshold != AUTO and not is_real(threshold, -sys.float_info.max, sys.float_info.max):
            refuse("a finite number or 'auto' for the threshold", threshold, "pass 'auto' to measure it")
        if not is_whole(interval, 1, sys.maxsize):
            remedy = "pass, for example, the number of batches in half an epoch"
            refuse("a whole number of at least 1 batch for interval", interval, remedy)
        if watched is not None and threshold != AUTO:
            raise SpecError(
                "expected threshold='auto' with watched, got a number; omit watched, or pass 'auto'"
            )
        if watched is not None and not is_whole(watched, 1, sys.maxsize):
            refuse(
                "a whole number of at least 1 batch for watched", watched, "omit watched for two intervals"
            )
        for name, bits in (("step_bits", step_bits), ("start_bits", start_bits), ("max_bits", max_bits)):
            if not is_whole(bits, 8, 32) or bits not in FORMATS:
                refuse(f"8, 16, 24 or 32 for {name}", bits, "choose one of these")
        if start_bits > max_bits:
            raise SpecError(
                f"expected start_bits of at most max_bits ({max_bits}), got {start_bits}; lower start_bits, "
                "or raise max_bits"
            )
        self.threshold = None if threshold == AUTO else threshold
        self._watch = _Measurement() if threshold == AUTO else None
        self.watched = _WATCHED_INTERVALS * interval if watched is None else watched
        self.interval = interval
        self.step_bits, self.start_bits, self.max_bits = step_bits, start_bits, max_bits
        self.bits: list[int] = []
        self.counts: list[int] = []
        self._norms: list[float] = []

    def observe(self, norms: Sequence[float]) -> list[int]:
        """Return each layer's bits after a batch, given all norms. The first call is before training."""
        if not self._norms:
            first = self.start_bits if self.threshold is not None else _WATCHED_BITS
            self.bits, self.counts = [first] * len(norms), [0] * len(norms)
            self._norms = [*norms]
            return [*self.bits]
        if len(norms) != len(self._norms) or not all(map(is_number, norms)):
            refuse(f"{len(self._norms)} norms", [*norms], "pass one norm for each layer")
        changes = [change(old, new) for old, new in zip(self._norms, norms, strict=True)]
        if self.threshold is None:
            self._measure(changes)
        else:
            after = [self._after(layer, norm) for layer, norm in enumerate(norms)]
            self.bits, self.counts = [bits for bits, _ in after], [count for _, count in after]
            self._check_changes(changes, self.threshold)
        self._norms = [*norms]
        return [*self.bits]

    def bits_for(self, layer: int, norm: float) -> int | None:
        """Return a layer's bits after a batch, or None if the bits also depend on other layers' norms.

        The result is None in the first call, and in the batch after which the threshold is computed.
        """
        if layer >= len(self._norms):
            return None
        if self.threshold is None:
            is_last = self._watch is None or self._watch.batches + 1 >= self.watched
            return None if is_last else self.bits[layer]
        return self._after(layer, norm)[0]

    def _after(self, layer: int, norm: float) -> tuple[int, int]:
        """Return a layer's bits, and its count of changes below the threshold, after a batch."""
        bits, count = self.bits[layer], self.counts[layer]
        if self.threshold is not None and change(self._norms[layer], norm) < self.threshold:
            count += 1
        return (min(bits + self.step_bits, self.max_bits), 0) if count >= self.interval else (bits, count)

    def _measure(self, changes: Sequence[float]) -> None:
        """Add a batch's changes to the measurement. After the last batch, set the threshold and the bits."""
        if self._watch is None:
            return
        self._watch.add([each for each in changes if math.isfinite(each)])
        if self._watch.batches >= self.watched and self._watch.count:
            self.threshold = self._watch.total / self._watch.count
            self.bits = [self.start_bits] * len(self.bits)
            self._watch = _Measurement()

    def _check_changes(self, changes: Sequence[float], threshold: float) -> None:
        if self._watch is None or self._watch.batches >= self.interval:
            return
        self._watch.add([each < threshold for each in changes])
        share = self._watch.total / self._watch.count
        if self._watch.batches == self.interval and share >= _NEARLY_ALL:
            warnings.warn(
                f"AWP: expected most changes of the norms to be above the threshold {threshold:.3g} (the "
                f"mean of the previous {self.watched} batches), got {share:.0%} below it in {self.interval} "
                "batches, so all layers gain bits regardless of their weights; pass a larger watched=, or a "
                "threshold",
                stacklevel=2,
            )

    def allowed(self, bits: Sequence[int]) -> list[int]:
        """Return saved bits within ``start_bits`` and ``max_bits``, or 32 while the threshold is unknown."""
        if self.threshold is None:
            return [_WATCHED_BITS] * len(bits)
        return [min(max(each, self.start_bits), self.max_bits) for each in bits]

    def state_dict(self) -> dict[str, Any]:
        """Return the layers' bits, counts, and norms, and the state of the measurement, as plain numbers."""
        rows = {"bits": [*self.bits], "counts": [*self.counts], "norms": [*self._norms]}
        auto = {} if self._watch is None else {"auto": [self.threshold, [*astuple(self._watch)]]}
        return {"version": _VERSION, **rows, **auto}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a ``state_dict``. Raises ``StateError`` for an invalid state, which changes nothing."""
        auto = ["auto"] if self._watch is not None else []
        given = _SOURCE.fields(state, "version", "bits", "counts", "norms", *auto)
        given.get("version", one_of(_VERSION))
        bits = given.get("bits", rows(one_of(*FORMATS)))
        counts = given.get("counts", rows(whole(), len(bits)))
        norms = given.get("norms", rows(real(0.0, finite=False), len(bits)))
        if self._watch is not None:
            self.threshold, (batches, count, total) = given.get(
                "auto", pair(optional(real()), rows(real(), 3))
            )
            self._watch = _Measurement(int(batches), int(count), total)
        self.bits, self.counts, self._norms = self.allowed(bits), [*counts], [*norms]


@dataclass
class _Measurement:
    """A running measurement of changes."""

    batches: int = 0
    count: int = 0
    total: float = 0.0  # the sum of the changes; afterwards, the number below the threshold

    def add(self, values: Sequence[float]) -> None:
        self.batches += 1
        self.count += len(values)
        self.total += math.fsum(values)


def change(before: float, now: float) -> float:
    """Return the relative change of a norm: infinite if only ``before`` is 0, and NaN if both norms are 0."""
    if before == 0:
        return math.nan if now == 0 else math.inf
    return (now - before) / before


def calibrate_threshold(norms: Sequence[Sequence[float]], errors: Sequence[float] | None = None) -> float:
    """Return a threshold for ``AWP``: the mean relative change of norms until the validation error drops.

    Parameters
    ----------
    norms
        For each batch of a few epochs, the norms of all layers.
    errors
        The validation error after each batch. Batches after the first drop are omitted. Without ``errors``,
        all batches are used.

    Raises ``SpecError`` without two batches with finite changes, or if batches have different layers.

    Examples
    --------
    >>> round(calibrate_threshold([[100.0], [99.0], [98.01], [50.0]], [0.9, 0.9, 0.8, 0.8]), 6)
    -0.01
    """
    if errors is not None and len(errors) != len(norms):
        raise SpecError(
            f"expected {len(norms)} validation errors, got {len(errors)}; pass one error for each batch"
        )
    if len({len(each) for each in norms}) > 1:
        refuse("a norm of each layer in every batch", norms, "record the norms of the same layers")
    drops = [batch for batch, (old, new) in enumerate(pairwise(errors or ()), 1) if new < old]
    watched = norms[: drops[0] + 1] if drops else norms
    changes = [
        change(old, new) for before, now in pairwise(watched) for old, new in zip(before, now, strict=True)
    ]
    if not (finite := [each for each in changes if math.isfinite(each)]):
        refuse("norms of at least two batches with finite changes", watched, "record more batches")
    return math.fsum(finite) / len(finite)
