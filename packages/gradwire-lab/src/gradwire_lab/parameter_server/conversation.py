"""The messages between the server and one worker, independent of the other workers' messages.

A message is one frame of six whole numbers. Its floats follow in frames of one segment each. The frames have
the same format as in an exchange: header, sequence numbers, checksums, and checks on arrival. The numbers are
sent as the bits of floats in an exact codec.

====== ======================================= ==========================================================
kind   from a worker                           meaning
====== ======================================= ==========================================================
PUSH   clock, staleness, count; the gradient   the worker has done step ``clock`` and waits for weights
PART   as PUSH; flags, then the gradient       as PUSH, and parameters with the flag 0 are unused
DRAIN  clock, staleness, count                 the worker waits until all workers have drained
====== ======================================= ==========================================================

======= ============================ ======================================================================
kind    from the server              meaning
======= ============================ ======================================================================
WEIGHTS clock, slowest; the weights  continue; the slowest worker has done ``slowest`` steps
SAME    clock, slowest               continue with the weights that the worker already has
HELD    clock, slowest, rank         keep waiting: ``rank`` has done only ``slowest`` steps
GAVE_UP clock, rank                  the server has stopped because of ``rank``
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
from gradwire.exchange.feedback import ErrorFeedback, commit_all
from gradwire.exchange.frames import Framer, incoming_buffers
from gradwire.exchange.walk import FrameStream, StreamResources
from gradwire.links.base import Link, Receiving, Sending, Wrapper
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.wire import HEADER_NBYTES, Sequences

EXACT = Identity()


class Kind(IntEnum):
    """The kind of a message. The module's docstring has the table."""

    PUSH = 1
    DRAIN = 2
    WEIGHTS = 3
    SAME = 4
    HELD = 5
    GAVE_UP = 6
    PART = 7


@dataclass(frozen=True, slots=True)
class Message:
    """The header of a message: whole numbers below 2^31. ``clock`` is the worker's clock, also in a reply."""

    kind: Kind
    clock: int
    staleness: int = 0
    count: int = 0
    slowest: int = 0
    rank: int = 0

    def to_floats(self) -> torch.Tensor:
        """Return the numbers as a 1-D float32 tensor with the bits of int32."""
        return torch.tensor(astuple(self), dtype=torch.int32, device="cpu").view(torch.float32)

    @classmethod
    def from_floats(cls, floats: torch.Tensor) -> Message:
        """Parse the result of ``to_floats``. Raises ``FrameError``."""
        kind, *numbers = floats.view(torch.int32).tolist()
        if kind not in list(Kind) or min(numbers) < 0:
            raise FrameError(
                f"expected a message of a parameter server, got {[kind, *numbers]}; "
                "create a server on rank 0 and workers of the same kind on all other ranks"
            )
        return cls(Kind(kind), *numbers)


_NUMBERS = len(fields(Message))


@dataclass(frozen=True, slots=True)
class _Beside:
    """The schedule step of a conversation: one peer, and one order of all sends and receives."""

    peer: int
    order: tuple[int, int] = (0, 0)
    keep: bool = False


class _TakingTurns(Wrapper):
    """A link on which threads start operations one at a time, and wait for their own."""

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
    """One side of the message exchange with one peer, used by one thread at a time.

    Parameters
    ----------
    link
        The link, shared by all conversations of a rank.
    peer
        The peer's rank.
    plan
        The plan whose segments divide the floats.
    turn
        The lock shared by all conversations of a link: conversations start sends and receives one at a time,
        but wait independently.
    """

    def __init__(self, link: Link, peer: int, plan: Plan, turn: Lock) -> None:
        self.link, self.peer = link, peer
        self._segment_count = plan.segment_nbytes // FLOAT_NBYTES
        self._words = Framer(EXACT, _NUMBERS)
        self._framers: dict[Codec, Framer] = {}
        self._incoming, self._beside = incoming_buffers(link), _Beside(peer)
        own = _TakingTurns(link, turn), self._incoming, Sequences(), Sequences()
        self._stream = FrameStream[_Beside](StreamResources(*own, 0, link.timeout_s, keepalive=False))

    def tell(self, message: Message) -> None:
        """Send a message without floats, and wait until it has been sent. Raises ``LinkError``."""
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
        """Send a message and its floats (1-D float32), and wait until they are sent.

        ``feedback`` stores the encoding error after everything is sent. ``before`` has floats that are sent
        between the message and ``floats``, without loss. Raises ``LinkError``.
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
            commit_all([feedback])

    def hear(self) -> Message:
        """Wait for the next message and return it. Raises ``FrameError`` and ``LinkError``."""
        numbers = torch.empty(_NUMBERS, dtype=torch.float32, device="cpu")
        self._store(self._words, [numbers])
        return Message.from_floats(numbers)

    def take_in(self, floats: torch.Tensor, codec: Codec) -> None:
        """Receive the floats of the last message into ``floats``.

        On an error, ``floats`` is partly written. Raises ``FrameError``, ``LinkError``, and ``PayloadError``.
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
        """Start to send a frame, and return its payload."""
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
