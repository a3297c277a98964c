"""How many more steps a training took to the losses of another one, from evaluations of both."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

JUDGED = 0.4
"""The last part of a run, whose evaluations count."""


def extra(exact: Sequence[float], losses: Sequence[float]) -> float:
    """Return the share of extra steps: how much earlier exact training had the losses of the last part."""
    smooth = _smoothed(exact)
    first = int(len(losses) * (1 - JUDGED))
    return (
        statistics.fmean(
            (place + 1) / _reached(smooth, loss)
            for place, loss in enumerate(_smoothed(losses))
            if place >= first
        )
        - 1
    )


def _smoothed(losses: Sequence[float], width: int = 2) -> list[float]:
    """Return means over neighbours; at the ends over fewer, to either side as many."""
    found = []
    for place in range(len(losses)):
        reach = min(width, place, len(losses) - 1 - place)
        found.append(statistics.fmean(losses[place - reach : place + reach + 1]))
    return found


def _reached(curve: Sequence[float], loss: float) -> float:
    """Return after how many evaluations a curve comes down to ``loss``, with fractions."""
    before = curve[0]
    for place, here in enumerate(curve):
        if here <= loss:
            share = 0.0 if place == 0 else (before - loss) / (before - here)
            return place + share if place else 1.0
        before = here
    return float(len(curve))
