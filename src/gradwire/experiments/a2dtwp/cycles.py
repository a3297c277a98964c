"""Trainings side by side on paced links: batch times without bursts, and the time to an error."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean, median

from gradwire.experiments.a2dtwp.options import UNLIMITED
from gradwire.experiments.claim import SHARE, Explanation, at_least, shown
from gradwire.experiments.experiment import Row
from gradwire.job.equal_loss import reach

AROUND = 7
"""Cycles before and after one, whose median stands for it: other work on the machine comes in bursts."""
SMOOTHED = 3
"""Evaluations whose mean is the error after the last of them."""
NOISE = 0.03
"""Two trainings with the same work take times that differ by so much on shared cores."""


def typical(values: Sequence[float]) -> list[float]:
    """Return the running median of some figures.

    Examples
    --------
    >>> typical([1.0, 1.0, 9.0, 1.0, 2.0])[2]
    1.0
    """
    return [median(values[max(place - AROUND, 0) : place + AROUND + 1]) for place in range(len(values))]


def figure_of(row: Row, system: str, name: str) -> float:
    """Return the mean of a figure over a training's cycles on the link of a system."""
    return fmean(typical(row["cycles"][system][name]))


def seconds_of(row: Row, system: str) -> list[float]:
    """Return the seconds after each batch, if all had run on the link of one system.

    A batch that ran on another one takes as long as those around it.
    """
    batches, timed = row["errors"][-1][0], typical(row["cycles"][system]["batch_s"])
    each = [timed[batch * len(timed) // batches] for batch in range(batches)]
    return list(accumulate(each))


def curve_of(row: Row, system: str) -> list[tuple[float, float, float]]:
    """Return batches, seconds, and smoothed error of each evaluation."""
    seconds, errors = seconds_of(row, system), [error for _, error in row["errors"]]
    return [
        (batch, seconds[batch - 1], fmean(errors[max(place - SMOOTHED + 1, 0) : place + 1]))
        for place, (batch, _) in enumerate(row["errors"])
    ]


def last_error(row: Row) -> float:
    """Return the error at the end."""
    return fmean(error for _, error in row["errors"][-SMOOTHED:])


def seconds_to(row: Row, system: str, target: float) -> float | None:
    """Return when a training reaches an error; None where it doesn't."""
    found = reach(curve_of(row, system), target)
    return None if found is None else found[1]


def gain(row: Row, baseline: Row, system: str, target: float) -> float | None:
    """Return the share of another policy's time to an error that a policy saves; None where one fails to."""
    own, others = seconds_to(row, system, target), seconds_to(baseline, system, target)
    return None if own is None or others is None else 1 - own / others


def hidden(row: Row, system: str, target: float) -> float | None:
    """Return the share of a policy's time to an error that a link without limit would save.

    What computation doesn't hide of the copies: no policy on this link saves more of it. None without cycles
    on such a link.
    """
    if UNLIMITED not in row["cycles"]:
        return None
    limited, free = seconds_to(row, system, target), seconds_to(row, UNLIMITED, target)
    return None if limited is None or free is None else 1 - free / limited


def nothing_to_save(rows: Sequence[Row], system: str) -> Explanation | None:
    """Return why a policy isn't faster than another one, of which these are the rows.

    None if a link without limit would make that one clearly faster, or wasn't measured.
    """
    known = _known([hidden(row, system, last_error(row)) for row in rows])
    if not known or max(known) > NOISE:
        return None
    return Explanation(
        f"a link without limit would save at most {shown(max(0.0, *known), SHARE)} of the other policy's "
        f"time, since its copies hide behind computation; times of the same work differ by up to "
        f"{shown(NOISE, SHARE)} here",
        at_least(-NOISE),
    )


def _known(shares: Sequence[float | None]) -> list[float]:
    """Return the shares; nothing if one of them is missing."""
    known = [each for each in shares if each is not None]
    return known if len(known) == len(shares) else []
