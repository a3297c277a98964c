"""Times and rates on a machine that others use, too: noise makes them worse at times, never better.

What holds whatever the machine does is a plain assertion, in every attempt. What only a quiet machine shows
is ``likely``: an attempt in which it does not hold is repeated, and a test in which it never holds fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class DisturbedError(AssertionError):
    """A time or rate was worse than it should be."""


def likely(holds: bool, *figures: object) -> None:
    """Raise ``DisturbedError``, with the figures, where a figure is worse than on a quiet machine."""
    if not holds:
        raise DisturbedError(f"a time or rate is worse than it should be: {figures}")


def undisturbed(attempt: Callable[[], Result], attempts: int = 4) -> Result:
    """Return what the first undisturbed attempt returns, or raise what disturbed all of them."""
    disturbances: list[DisturbedError] = []
    while len(disturbances) < attempts:
        try:
            return attempt()
        except DisturbedError as disturbance:
            disturbances.append(disturbance)
    raise DisturbedError(f"none of {attempts} attempts was undisturbed: {'; '.join(map(str, disturbances))}")
