"""By how much repeats of a measurement disagree: what a median does not tell."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def disagreement(seconds: Sequence[float]) -> float:
    """Return the quartiles' distance from their middle as a share of it; the extremes' below four repeats.

    A third where they differ by a factor of two, 0 where all agree, always below 1.

    Examples
    --------
    >>> disagreement([1.0, 1.0, 1.0, 9.0, 1.0]), disagreement([2.0, 4.0])
    (0.0, 0.3333333333333333)
    """
    if len(seconds) < 2:
        return 0.0
    low, high = min(seconds), max(seconds)
    if len(seconds) >= 4:
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / (high + low) if high > 0 else 0.0
