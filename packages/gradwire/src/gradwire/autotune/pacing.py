"""Work between steps, divided into pieces, so that no step becomes much longer.

Measurements and the search for a plan are generators. They yield None after a piece of local work, and a
``Together`` where all ranks exchange rows. In each step, a rank runs pieces until they have taken a share of
the step. The number of steps until the work is done is limited, because the share grows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gradwire.autotune.settings import AutoConfig
from gradwire.exchange import Exchange
from gradwire.sync.messages import gather

if TYPE_CHECKING:
    from gradwire.sync.bucket.observe import BetweenSteps

T = TypeVar("T")


@dataclass(frozen=True)
class Together:
    """A piece of work in which all ranks take part: they make the same ``call`` in the same step.

    ``what`` names it in errors.
    """

    what: str
    call: Callable[[Exchange], Any]


Work = Generator[Together | None, Any, T]
"""Work in pieces. If one rank yields None between two of its ``Together``, all ranks do, at least once."""


def at_once(work: Work[T], exchange: Exchange | None = None) -> T:
    """Run all pieces and return the result; ``exchange`` is for work with a ``Together``."""
    value = None
    while True:
        try:
            piece = work.send(value)
        except StopIteration as done:
            result: T = done.value
            return result
        value = None
        if piece is not None:
            assert exchange is not None, "this work needs the other ranks"
            value = piece.call(exchange)


class PacedWork(Generic[T]):
    """Work that begins before step ``first``, and is done ``most_paced_steps`` later at the latest.

    A rank runs its local pieces by its own clock: at least one in each step, and more until they have taken
    ``paced_share`` of ``step_s``, a share that doubles every ``paced_doubling_steps``. In some steps, the
    ranks compare whether all have reached the next ``Together``, and run it if they have. So they run it in
    the same step, whatever their clocks say. They compare in every step if that takes no more than
    ``paced_share`` of it, else less often, and at least in every ``meeting_steps``-th step.

    Attributes
    ----------
    result
        The result; valid once ``advance`` has returned True.
    """

    result: T

    def __init__(
        self,
        work: Work[T],
        first: int,
        step_s: float,
        timeout_s: float,
        clock: Callable[[], float],
        config: AutoConfig,
    ) -> None:
        self._work, self._first, self._step_s = work, first, step_s
        self._timeout_s, self._clock, self._config = timeout_s, clock, config
        self._next: Together | None = None
        self._met, self._rest_steps, self._meeting_s = 0, 0, 0.0  # of the latest comparison
        self._all_wait = True  # for the same Together: no rank has local pieces before it

    def advance(self, step: int, sync: BetweenSteps) -> bool:
        """Run this step's pieces; return whether the work is done, which all ranks are in the same step."""
        began, late = self._clock(), step - self._first
        config = self._config
        is_last = late >= config.most_paced_steps
        share = config.paced_share * 2 ** (late // config.paced_doubling_steps)
        until = inf if is_last else began + share * self._step_s
        while True:
            self._run_local(until)
            go_on = is_last
            if not self._all_wait:
                if not is_last and self._met < late < self._met + self._rest_steps:
                    return False
                waiting, go_on = self._agree(sync, until, late)
                if not waiting:
                    return False
            assert self._next is not None
            together, self._next, self._all_wait = self._next, None, True
            if self._resume(sync.exchange_now(together.what, together.call)):
                return True
            if self._waits and not go_on:
                return False

    @property
    def _waits(self) -> bool:
        """Whether this rank has reached the next ``Together``."""
        return self._next is not None

    def _run_local(self, until: float) -> None:
        """Run local pieces up to the next ``Together``, at least one, and no more after ``until``."""
        while not self._waits:
            is_done = self._resume(None)
            assert not is_done, "work ends with a Together, so that all ranks end in the same step"
            if not self._waits and self._clock() > until:
                return

    def _resume(self, value: Any) -> bool:
        """Run one piece, with the ``value`` of the ``Together`` before it; return whether it was the last."""
        try:
            self._next = self._work.send(value)
        except StopIteration as done:
            self.result = done.value
            return True
        self._all_wait = self._all_wait and self._waits
        return False

    def _agree(self, sync: BetweenSteps, until: float, late: int) -> tuple[bool, bool]:
        """Return whether all ranks wait for the next ``Together``, and whether all have time left."""
        began = self._clock()
        own = [float(self._waits), float(began <= until), float(self._meeting_steps)]
        rows = sync.exchange_now("progress", lambda exchange: gather(exchange, own, self._timeout_s))
        waiting, in_time, steps = zip(*rows, strict=True)
        self._met, self._rest_steps = late, int(max(steps))
        self._meeting_s = self._clock() - began
        return all(waiting), all(in_time)

    @property
    def _meeting_steps(self) -> int:
        """The steps between two comparisons, so that they take at most ``paced_share`` of these steps."""
        most, share_s = self._config.meeting_steps, self._config.paced_share * self._step_s
        return most if self._meeting_s >= most * share_s else max(1, ceil(self._meeting_s / share_s))
