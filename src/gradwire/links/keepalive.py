"""Keepalives: how a rank that waits for long learns that frames move between other ranks.

A rank that is served last, by a star's root or in a tree, may receive nothing for much longer than a timeout,
although no rank has failed. So a rank that moves frames sends a keepalive to all others now and then, and a
rank that has waited for a while reads those of all others. A timeout counts from the last part of a frame
that moved, on this rank or on another. Ranks that only wait send no keepalives, and so cannot keep each other
waiting for ever.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

SIGNS = 4
"""How often within a timeout a rank sends keepalives, and how soon it reads them."""


@dataclass(slots=True)
class Activity:
    """When a link moved a part of a frame last, heard that another rank did, and sent keepalives.

    Times are those of ``time.monotonic``.
    """

    moved_at: float = -math.inf
    heard_at: float = -math.inf
    _sent_at: float = field(default_factory=time.monotonic)

    def is_due(self, timeout_s: float) -> bool:
        """Return whether to send keepalives now, which counts as done then."""
        now = time.monotonic()
        due = self._sent_at < self.moved_at and now - self._sent_at > timeout_s / SIGNS
        if due:
            self._sent_at = now
        return due
