"""The clocks of bounded staleness: how many steps of each worker are in the weights, and who may go on.

This is the condition of Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
Server" (NIPS 2013), section 2: with staleness S the fastest and the slowest worker are at most S clocks
apart, else the fastest waits. A worker that begins step c (from 0) so reads weights that hold the first c - S
gradients of every worker, and all of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradwire.codecs.spec import is_whole
from gradwire.errors import SpecError

LARGEST_STALENESS = 1 << 20
"""More is no bound any more."""


class Clocks:
    """One clock per worker, which counts its gradients; ``staleness`` is S."""

    def __init__(self, workers: Iterable[int], staleness: int) -> None:
        self.staleness = staleness
        self._done = dict.fromkeys(workers, 0)

    def tick(self, rank: int) -> int:
        """Count a gradient of ``rank``; return how many it has sent."""
        self._done[rank] += 1
        return self._done[rank]

    def set_all(self, done: int) -> None:
        """Let every worker have sent so many gradients."""
        self._done = dict.fromkeys(self._done, done)

    def of(self, rank: int) -> int:
        """Return how many gradients ``rank`` has sent."""
        return self._done[rank]

    @property
    def slowest(self) -> int:
        """How many gradients have come from the worker that is furthest behind."""
        return min(self._done.values())

    @property
    def slowest_rank(self) -> int:
        """The worker that is furthest behind; the first of several."""
        return min(self._done, key=self._done.__getitem__)

    @property
    def level(self) -> bool:
        """Whether all workers have sent equally many gradients."""
        return self.slowest == max(self._done.values())

    def may_go_on(self, rank: int) -> bool:
        """Return whether ``rank`` may begin its next step."""
        return self._done[rank] - self.slowest <= self.staleness


def check_staleness(staleness: int) -> None:
    """Raise ``SpecError`` unless it is a whole number from 0 to ``LARGEST_STALENESS``."""
    if not is_whole(staleness, 0, LARGEST_STALENESS):
        raise SpecError(
            f"the staleness must be a whole number from 0 to {LARGEST_STALENESS}, but is {staleness!r}; "
            "0 is synchronous"
        )
