"""One worker's thread at the server, which receives gradients and sends weights, and the clocks of all."""

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
from gradwire.sync import thread as endings
from gradwire.sync.deltas import over
from gradwire_lab.parameter_server.conversation import EXACT, Conversation, Kind, Message

# The clocks of bounded staleness: how many steps of each worker are in the weights, and who may go on.
#
# The condition of Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
# Server" (NIPS 2013), section 2: with staleness S the fastest and the slowest worker are at most S clocks
# apart, else the fastest waits. A worker that begins step c (from 0) thus reads weights that hold the first c
# - S gradients of every worker, and all of its own.

LARGEST_STALENESS = 1 << 20
"""A larger one bounds nothing."""


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
        """Let every worker have sent ``done`` gradients."""
        self._done = dict.fromkeys(self._done, done)

    def of(self, rank: int) -> int:
        """Return how many gradients ``rank`` has sent."""
        return self._done[rank]

    @property
    def slowest(self) -> int:
        """The number of gradients from the worker that is furthest behind."""
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


SIGNS_OF_LIFE = 3
"""The server's signs of life within the link's timeout, to a worker that is held back."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The weights after ``updates`` updates, never written again."""

    updates: int
    floats: torch.Tensor


@dataclass(frozen=True, slots=True)
class Codecs:
    """The codecs of gradients and of weights."""

    gradients: Codec
    weights: Codec


class Now(Enum):
    """A session's report: a complete gradient, a worker that drains, or the end."""

    PUSHED = "pushed"
    DRAINS = "drains"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Event:
    """A session and its report, or the error that ended it."""

    session: Session
    what: Now | BaseException


class Session:
    """The server's side of one worker.

    Between ``start`` and the event ``ENDED`` a thread talks with the worker: it hears a request, reports it
    and replies with what ``answer`` or ``give_up`` passes. Meanwhile it tells the worker now and then that
    the server lives, so that a long wait is no failure. ``gradient``, 1-D float32, is the thread's while it
    receives, and the server's from the event to the answer. ``clocks`` are only read.
    """

    def __init__(
        self,
        talk: Conversation,
        gradient: torch.Tensor,
        parameters: int,
        clocks: Clocks,
        codecs: Codecs,
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
        """Begin to serve the worker until it has done ``goal`` steps and drained."""
        name = f"gradwire server, worker {self.rank}"
        run, finish = partial(self._run, goal, events), partial(self.give_up, self._talk.link.rank)
        self._thread = endings.start(run, name, finish, self._talk.link.close)

    def answer(self, snapshot: Snapshot) -> None:
        """Let the worker go on with the weights of ``snapshot``."""
        kind = Kind.SAME if snapshot.updates == self._updates_sent else Kind.WEIGHTS
        self.asks, self._updates_sent = None, snapshot.updates
        message = Message(kind, self._clock, slowest=self._clocks.slowest)
        self._answers.put((message, snapshot if kind is Kind.WEIGHTS else None))

    def give_up(self, rank: int) -> None:
        """Tell the worker, as soon as it listens, that the server stops because of ``rank``."""
        self._answers.put((Message(Kind.GAVE_UP, self._clock, rank=rank), None))

    def join(self, until: float) -> None:
        """Wait for the thread's end, up to a time of ``time.monotonic``."""
        if self._thread is not None:
            self._thread.join(max(until - time.monotonic(), 0))

    def settle(self) -> ExchangeCost:
        """Return the cost of talking with the worker since the last call."""
        return self._talk.settle()

    @property
    def absent(self) -> frozenset[int]:
        """The numbers of the parameters that the worker's last backward pass has not reached."""
        return frozenset(number for number, reached in enumerate(self._reached.tolist()) if not reached)

    @property
    def _clock(self) -> int:
        return self._clocks.of(self.rank)

    def _run(self, goal: int, events: SimpleQueue[Event]) -> None:
        what: Now | BaseException = Now.ENDED
        try:
            while self._serve(goal, events) in (Kind.PUSH, Kind.PART):
                pass
        except BaseException as error:  # it is not lost: the server raises it
            what = error
        events.put(Event(self, what))

    def _serve(self, goal: int, events: SimpleQueue[Event]) -> Kind:
        """Serve one request; return its kind, or ``GAVE_UP``."""
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
                    f"the {what} of rank {self.rank} is {found}, but that of the server is {expected}; "
                    "make all ranks with the same"
                )
        due = min(self._clock + 1, goal), Kind.PUSH if self._clock < goal else Kind.DRAIN
        kind = Kind.PUSH if asked.kind is Kind.PART else asked.kind
        if (asked.clock, kind) != due:
            raise ExchangeError(
                f"rank {self.rank} asks for {asked.kind.name} at its step {asked.clock}, but the server "
                f"waits for {due[1].name} at its step {due[0]}; serve as many steps as every worker takes "
                "before it drains"
            )
