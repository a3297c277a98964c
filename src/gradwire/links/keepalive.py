"""Words of life: how a rank that waits for long learns that others are at work.

A rank that is served last, by a star's root or in a tree, may hear nothing for much longer than a timeout,
and nobody has failed. So a rank that moves frames says so to all others now and then, by a word that stands
where a frame's length could, and whoever has waited for a while listens to all. A timeout counts from the
last part of a frame that moved, here or there. Words are no frames: ranks that only wait say nothing, and
so cannot keep each other waiting for ever.
"""

from __future__ import annotations

import math
import time

ALIVE = (1 << 64) - 1
"""The word: no frame has this length."""
SIGNS = 4
"""How many times within the timeout a rank tells, and how soon it listens."""


class Keepalive:
    """When a link last moved part of a frame, heard that another did, and told the others of its own."""

    def __init__(self) -> None:
        self._moved_at = self._heard_at = -math.inf
        self._told_at = time.monotonic()

    @property
    def last(self) -> float:
        """When a frame is last known to have moved, as ``time.monotonic`` tells; long ago if never."""
        return max(self._moved_at, self._heard_at)

    def moved(self) -> None:
        """Note that a part of a frame has moved."""
        self._moved_at = time.monotonic()

    def heard(self) -> None:
        """Note that another rank has moved one."""
        self._heard_at = time.monotonic()

    def tells(self, now: float, timeout_s: float) -> bool:
        """Return whether the others are to be told now; it counts as done then."""
        due = self._told_at < self._moved_at and now - self._told_at > timeout_s / SIGNS
        if due:
            self._told_at = now
        return due
