"""The server's thread for one worker, and all workers' clocks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

import torch

from gradwire.codecs import Codec
from gradwire.codecs.spec import is_whole
from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError, SpecError
from gradwire.sync import daemon
from gradwire.sync.replicas.deltas import over
from gradwire_lab.parameter_server.conversation import EXACT, Conversation, Kind, Message

# The clocks of bounded staleness: the number of each worker's steps that the weights include.
#
# The condition of Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
# Server" (NIPS 2013), section 2: with staleness S, the fastest worker waits if it is more than S clocks ahead
# of the slowest. A worker that begins step c (from 0) thus reads weights that include the first c - S
# gradients of every worker, and all of the worker's own gradients.

LARGEST_STALENESS = 1 << 20
"""The largest staleness. No run has workers that are this many steps apart."""


class Clocks:
    """The number of gradients received from each worker; ``staleness`` is S of the condition."""

    def __init__(self, workers: Iterable[int], staleness: int) -> None:
        self.staleness = staleness
        self._done = dict.fromkeys(workers, 0)

    def tick(self, rank: int) -> int:
        """Count one more gradient of ``rank``, and return the rank's number of gradients."""
        self._done[rank] += 1
        return self._done[rank]

    def set_all(self, done: int) -> None:
        """Set every worker's number of gradients to ``done``."""
        self._done = dict.fromkeys(self._done, done)

    def of(self, rank: int) -> int:
        """Return the number of gradients from ``rank``."""
        return self._done[rank]

    @property
    def slowest(self) -> int:
        """The number of gradients from the slowest worker."""
        return min(self._done.values())

    @property
    def slowest_rank(self) -> int:
        """The rank of the slowest worker, or the lowest rank if there are several."""
        return min(self._done, key=self._done.__getitem__)

    @property
    def level(self) -> bool:
        """Whether all workers have sent the same number of gradients."""
        return self.slowest == max(self._done.values())

    def may_go_on(self, rank: int) -> bool:
        """Return whether ``rank`` may begin its next step."""
        return self._done[rank] - self.slowest <= self.staleness


def check_staleness(staleness: int) -> None:
    """Raise ``SpecError`` unless ``staleness`` is a whole number from 0 to ``LARGEST_STALENESS``."""
    if not is_whole(staleness, 0, LARGEST_STALENESS):
        raise SpecError(
            f"expected a staleness as a whole number from 0 to {LARGEST_STALENESS}, got {staleness!r}; "
            "pass 0 for synchronous training"
        )


SIGNS_OF_LIFE = 3
"""The number of keepalive messages per link timeout that the server sends to a waiting worker."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A read-only copy of the weights after ``updates`` updates."""

    updates: int
    floats: torch.Tensor


@dataclass(frozen=True, slots=True)
class Codecs:
    """The codecs of gradients and weights."""

    gradients: Codec
    weights: Codec


class Now(Enum):
    """The kinds of a session's reports: a complete gradient, a drain request, or the session's end."""

    PUSHED = "pushed"
    DRAINS = "drains"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Event:
    """A session with its report, or with the error that ended it."""

    session: Session
    what: Now | BaseException


class Session:
    """The server's side of one worker.

    Between ``start`` and the event ``ENDED``, a thread receives requests, reports them, and replies with the
    arguments of ``answer`` or ``give_up``. While the worker waits, the thread sends keepalive messages, so
    that the worker doesn't time out. ``gradient``, 1-D float32, belongs to the thread while it receives, and
    to the server from the event until the answer. The session only reads ``clocks``.
    """

    def __init__(
        self, talk: Conversation, gradient: torch.Tensor, parameters: int, clocks: Clocks, codecs: Codecs
    ) -> None:
        self.rank = talk.peer
        self.gradient = gradient
        self._reached = torch.ones(parameters, dtype=torch.float32, device="cpu")
        self.asks: Now | None = None
        self._talk, self._clocks, self._codecs = talk, clocks, codecs
        self._answers: SimpleQueue[tuple[Message, Snapshot | None]] = SimpleQueue()
        self._updates_sent: int | None = None
        self._thread: Thread | None = None

    def start(self, goal: int, events: SimpleQueue[Event]) -> None:
        """Start a thread that serves the worker until it has done ``goal`` steps and drained."""
        name = f"gradwire server, worker {self.rank}"
        run, finish = partial(self._run, goal, events), partial(self.give_up, self._talk.link.rank)
        self._thread = daemon.start(run, name, finish, self._talk.link.close)

    def answer(self, snapshot: Snapshot) -> None:
        """Reply to the worker with the weights of ``snapshot``, unless the worker has them already."""
        kind = Kind.SAME if snapshot.updates == self._updates_sent else Kind.WEIGHTS
        self.asks, self._updates_sent = None, snapshot.updates
        message = Message(kind, self._clock, slowest=self._clocks.slowest)
        self._answers.put((message, snapshot if kind is Kind.WEIGHTS else None))

    def give_up(self, rank: int) -> None:
        """Reply to the worker's next request that the server stops because of ``rank``."""
        self._answers.put((Message(Kind.GAVE_UP, self._clock, rank=rank), None))

    def join(self, until: float) -> None:
        """Wait for the thread to end, until a time of ``time.monotonic``."""
        if self._thread is not None:
            self._thread.join(max(until - time.monotonic(), 0))

    def settle(self) -> ExchangeCost:
        """Return the cost of the exchange with the worker since the last call."""
        return self._talk.settle()

    @property
    def absent(self) -> frozenset[int]:
        """The indices of the parameters that the worker's last backward pass didn't use."""
        return frozenset(number for number, reached in enumerate(self._reached.tolist()) if not reached)

    @property
    def _clock(self) -> int:
        return self._clocks.of(self.rank)

    def _run(self, goal: int, events: SimpleQueue[Event]) -> None:
        what: Now | BaseException = Now.ENDED
        try:
            while self._serve(goal, events) in (Kind.PUSH, Kind.PART):
                pass
        except BaseException as error:  # the server raises the error
            what = error
        events.put(Event(self, what))

    def _serve(self, goal: int, events: SimpleQueue[Event]) -> Kind:
        """Serve one request, and return its kind, or ``GAVE_UP``."""
        asked = self._talk.hear()
        self._check(asked, goal)
        if asked.kind is not Kind.DRAIN:
            self._reached.fill_(1)
            if asked.kind is Kind.PART:
                self._talk.take_in(self._reached, EXACT)
            self._talk.take_in(self.gradient, self._codecs.gradients)
        events.put(Event(self, Now.DRAINS if asked.kind is Kind.DRAIN else Now.PUSHED))
        message, snapshot = self._next_answer()
        if snapshot is None:
            self._talk.tell(message)
        else:
            floats = snapshot.floats
            self._talk.hand_over(message, floats, over(self._codecs.weights, floats))
        return message.kind if message.kind is Kind.GAVE_UP else asked.kind

    def _next_answer(self) -> tuple[Message, Snapshot | None]:
        while True:
            try:
                return self._answers.get(timeout=self._talk.link.timeout_s / SIGNS_OF_LIFE)
            except Empty:
                slowest, rank = self._clocks.slowest, self._clocks.slowest_rank
                self._talk.tell(Message(Kind.HELD, self._clock, slowest=slowest, rank=rank))

    def _check(self, asked: Message, goal: int) -> None:
        for what, found, expected in (
            ("staleness", asked.staleness, self._clocks.staleness),
            ("number of weights", asked.count, self.gradient.numel()),
        ):
            if found != expected:
                raise ExchangeError(
                    f"expected the server's {what} of {expected} on rank {self.rank}, got {found}; create "
                    f"all ranks with the same {what}"
                )
        due = min(self._clock + 1, goal), Kind.PUSH if self._clock < goal else Kind.DRAIN
        kind = Kind.PUSH if asked.kind is Kind.PART else asked.kind
        if (asked.clock, kind) != due:
            raise ExchangeError(
                f"expected {due[1].name} at step {due[0]} from rank {self.rank}, got {asked.kind.name} at "
                f"step {asked.clock}; pass 'serve' the number of steps that each worker runs before 'drain'"
            )
