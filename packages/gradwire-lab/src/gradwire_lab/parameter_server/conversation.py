"""The messages between a server and one worker, while other threads talk with other workers.

A message is one frame of six whole numbers, and the floats that belong to it follow in frames of a segment
each. All frames are those of an exchange: the same header, sequence numbers, checksums and door. Numbers
travel as the bits of an exact codec's floats.

====== ======================================= ==========================================================
kind   from a worker                           means
====== ======================================= ==========================================================
PUSH   clock, staleness, count; the gradient   my step ``clock`` is done; I wait for weights
PART   the same; numbers, then the gradient    the same, but I have not reached the parameters with a 0
DRAIN  clock, staleness, count                 I do not go on before all of us have drained
====== ======================================= ==========================================================

======= ============================ ======================================================================
kind    from the server              means
======= ============================ ======================================================================
WEIGHTS clock, slowest; the weights  go on; the slowest worker has done ``slowest`` steps
SAME    clock, slowest               go on; you have these weights already
HELD    clock, slowest, rank         wait on: ``rank`` has done ``slowest`` steps only
GAVE_UP clock, rank                  the server has stopped, because of ``rank``
======= ============================ ======================================================================
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from enum import IntEnum
from threading import Lock

import torch

from gradwire.codecs import Codec, Identity
from gradwire.costs import ExchangeCost
from gradwire.errors import FrameError
from gradwire.exchange.feedback import ErrorFeedback
from gradwire.exchange.frames import Framer, Sequences, incoming_buffers
from gradwire.exchange.walk import CodecResources, FrameStream
from gradwire.links.base import Link, Receiving, Sending, Wrapper
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.wire import HEADER_NBYTES

EXACT = Identity()


class Kind(IntEnum):
    """The kind of a message; the module's text has the table."""

    PUSH = 1
    DRAIN = 2
    WEIGHTS = 3
    SAME = 4
    HELD = 5
    GAVE_UP = 6
    PART = 7


@dataclass(frozen=True, slots=True)
class Message:
    """Whole numbers below 2^31; ``clock`` is that of the worker who sends or is answered."""

    kind: Kind
    clock: int
    staleness: int = 0
    count: int = 0
    slowest: int = 0
    rank: int = 0

    def to_floats(self) -> torch.Tensor:
        """Return the numbers as the bits of float32, 1-D."""
        return torch.tensor(astuple(self), dtype=torch.int32, device="cpu").view(torch.float32)

    @classmethod
    def from_floats(cls, floats: torch.Tensor) -> Message:
        """Read what ``to_floats`` made. Raises ``FrameError``."""
        kind, *numbers = floats.view(torch.int32).tolist()
        if kind not in list(Kind) or min(numbers) < 0:
            raise FrameError(f"no message of a parameter server: it holds {[kind, *numbers]}")
        return cls(Kind(kind), *numbers)


_NUMBERS = len(fields(Message))


@dataclass(frozen=True, slots=True)
class _Beside:
    """The peer; its conversation has one order, in which no peer waits for a send before a receive."""

    peer: int
    order: tuple[int, int] = (0, 0)
    keep: bool = False


class _TakingTurns(Wrapper):
    """A link whose sends and receives several threads begin, one at a time; each waits for its own."""

    def __init__(self, inner: Link, turn: Lock) -> None:
        super().__init__(inner)
        self._turn = turn

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        with self._turn:
            return self._inner.isend(to, frame)

    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        with self._turn:
            return self._inner.irecv(source, buffer)


class Conversation:
    """One side of a conversation with one peer; it serves one thread at a time.

    Parameters
    ----------
    link
        Shared by the conversations of a rank.
    peer
        Whom to talk with.
    plan
        Its segments cut the floats.
    turn
        One lock for all conversations of a link: sends and receives are begun one at a time, but every
        conversation waits for its own.
    """

    def __init__(self, link: Link, peer: int, plan: Plan, turn: Lock) -> None:
        self.link, self.peer = link, peer
        self._segment_count = plan.segment_nbytes // FLOAT_NBYTES
        self._words = Framer(EXACT, _NUMBERS)
        self._framers: dict[Codec, Framer] = {}
        self._incoming, self._beside = incoming_buffers(link), _Beside(peer)
        own = _TakingTurns(link, turn), self._words, self._incoming, Sequences(), Sequences()
        self._stream = FrameStream[_Beside](CodecResources(*own, 0, link.timeout_s, keepalive=False))

    def tell(self, message: Message) -> None:
        """Send a message that no floats follow, and wait until it has left. Raises ``LinkError``."""
        self._send(self._words, message.to_floats())
        self._stream.flush()

    def hand_over(
        self,
        message: Message,
        floats: torch.Tensor,
        codec: Codec,
        feedback: ErrorFeedback | None = None,
        before: torch.Tensor | None = None,
    ) -> None:
        """Send a message and the floats (1-D float32) that belong to it, and wait until they have left.

        ``feedback`` keeps what encoding loses, once all has left. ``before`` goes first, exactly.
        Raises ``LinkError``.
        """
        feedback = ErrorFeedback(codec) if feedback is None else feedback
        with self._clock("encode_s"):
            feedback.begin(floats)
        self._send(self._words, message.to_floats())
        for segment in () if before is None else torch.split(before, self._segment_count):
            self._send(self._framer(EXACT), segment)
        for start in range(0, floats.numel(), self._segment_count):
            segment = floats[start : start + self._segment_count]
            payload = self._send(self._framer(codec), segment, segment.nbytes)
            with self._clock("decode_s"):
                feedback.sent(payload, segment, start)
        self._stream.flush()
        with self._clock("decode_s"):
            feedback.commit()

    def hear(self) -> Message:
        """Wait for the next message. Raises ``FrameError`` and ``LinkError``."""
        numbers = torch.empty(_NUMBERS, dtype=torch.float32, device="cpu")
        self._store(self._words, [numbers])
        return Message.from_floats(numbers)

    def take_in(self, floats: torch.Tensor, codec: Codec) -> None:
        """Receive the floats that belong to the message just heard.

        On an error ``floats`` is partly written. Raises ``FrameError``, ``LinkError`` and ``PayloadError``.
        """
        self._store(self._framer(codec), torch.split(floats, self._segment_count))

    def settle(self) -> ExchangeCost:
        """Return the cost of the conversation since the last call."""
        cost, self._stream.accounting = self._stream.accounting, ExchangeCost()
        return cost

    def _framer(self, codec: Codec) -> Framer:
        if codec not in self._framers:
            self._framers[codec] = Framer(codec, self._segment_count)
        return self._framers[codec]

    def _send(self, framer: Framer, segment: torch.Tensor, raw_nbytes: int = 0) -> torch.Tensor:
        """Begin to send a frame; return its payload."""
        outgoing = self._stream.encode(self._beside, framer, segment)
        self._stream.send(self._beside, outgoing, raw_nbytes)
        return outgoing.frame[HEADER_NBYTES:]

    def _store(self, framer: Framer, segments: Sequence[torch.Tensor]) -> None:
        self._stream.expect([self._beside] * len(segments))
        for segment in segments:
            _, payload, buffer, _ = self._stream.receive(framer, segment.numel())
            with self._clock("decode_s"):
                framer.codec.decode(payload, segment)
            self._incoming.give(buffer)

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        start, cost = time.perf_counter(), self._stream.accounting
        yield
        setattr(cost, name, getattr(cost, name) + time.perf_counter() - start)
