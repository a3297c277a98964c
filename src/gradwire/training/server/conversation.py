"""What a server and one worker say to each other, while other threads talk with other workers.

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
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from enum import IntEnum
from threading import Lock

import torch

from gradwire.codecs import Codec, Identity
from gradwire.collectives.frame_order import AHEAD
from gradwire.errors import FrameError
from gradwire.exchange import Accounting
from gradwire.exchange.feedback import Losses
from gradwire.exchange.frames import Framer, Outgoing, Sequences, incoming_buffers
from gradwire.links.base import Link, Receiving, Sending
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.wire import HEADER_NBYTES

EXACT = Identity()


class Kind(IntEnum):
    """What a message is about; the module's text has the table."""

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
        self._turn = turn
        self._segment_count = plan.segment_nbytes // FLOAT_NBYTES
        self._words = Framer(EXACT, _NUMBERS)
        self._framers: dict[Codec, Framer] = {}
        self._incoming = incoming_buffers(link)
        self._sent, self._received = Sequences(), Sequences()
        self._in_flight: deque[tuple[Sending, Outgoing]] = deque()
        self._accounting = Accounting()

    def tell(self, message: Message) -> None:
        """Send a message that no floats follow, and wait until it has left. Raises ``LinkError``."""
        self._isend(self._words, message.to_floats())
        self._flush()

    def hand_over(
        self,
        message: Message,
        floats: torch.Tensor,
        codec: Codec,
        losses: Losses | None = None,
        before: torch.Tensor | None = None,
    ) -> None:
        """Send a message and the floats (1-D float32) that belong to it, and wait until they have left.

        ``losses`` keeps what encoding loses, once all has left. ``before`` are floats that go first, exactly.
        Raises ``LinkError``.
        """
        losses = Losses(codec) if losses is None else losses
        with self._clock("encode_s"):
            losses.begin(floats)
        self._isend(self._words, message.to_floats())
        for segment in () if before is None else torch.split(before, self._segment_count):
            self._isend(self._framer(EXACT), segment)
        for start in range(0, floats.numel(), self._segment_count):
            segment = floats[start : start + self._segment_count]
            payload = self._isend(self._framer(codec), segment)
            self._accounting.raw_nbytes += FLOAT_NBYTES * segment.numel()
            with self._clock("decode_s"):
                losses.sent(payload, segment, start)
        self._flush()
        with self._clock("decode_s"):
            losses.commit()

    def hear(self) -> Message:
        """Wait for the next message. Raises ``FrameError`` and ``LinkError``."""
        numbers = torch.empty(_NUMBERS, dtype=torch.float32, device="cpu")
        self._store(self._post(), self._words, numbers)
        return Message.from_floats(numbers)

    def take_in(self, floats: torch.Tensor, codec: Codec) -> None:
        """Receive the floats that belong to the message just heard.

        On an error ``floats`` is partly written. Raises ``FrameError``, ``LinkError`` and ``PayloadError``.
        """
        segments = torch.split(floats, self._segment_count)
        posted: deque[tuple[Receiving, torch.Tensor]] = deque()
        for number, segment in enumerate(segments):
            while len(posted) < min(AHEAD, len(segments) - number):
                posted.append(self._post())
            self._store(posted.popleft(), self._framer(codec), segment)

    def settle(self) -> Accounting:
        """Return what the conversation has cost since it was last asked."""
        cost, self._accounting = self._accounting, Accounting()
        cost.total_s = cost.encode_s + cost.decode_s + cost.wait_s
        return cost

    def _framer(self, codec: Codec) -> Framer:
        if codec not in self._framers:
            self._framers[codec] = Framer(codec, self._segment_count)
        return self._framers[codec]

    def _isend(self, framer: Framer, segment: torch.Tensor) -> torch.Tensor:
        """Begin to send a frame; return its payload."""
        while len(self._in_flight) >= AHEAD:
            self._retire()
        with self._clock("encode_s"):
            outgoing = framer.encode(segment, self._sent.take(self.peer))
        with self._turn:
            sending = self.link.isend(self.peer, outgoing.frame)
        self._in_flight.append((sending, outgoing))
        self._accounting.frames += 1
        self._accounting.wire_nbytes += outgoing.frame.numel()
        return outgoing.frame[HEADER_NBYTES:]

    def _flush(self) -> None:
        while self._in_flight:
            self._retire()

    def _retire(self) -> None:
        sending, outgoing = self._in_flight.popleft()
        with self._clock("wait_s"):
            sending.wait()
        outgoing.home.give(outgoing.buffer)

    def _post(self) -> tuple[Receiving, torch.Tensor]:
        buffer = self._incoming.take()
        with self._turn:
            return self.link.irecv(self.peer, buffer), buffer

    def _store(self, posted: tuple[Receiving, torch.Tensor], framer: Framer, segment: torch.Tensor) -> None:
        receiving, buffer = posted
        with self._clock("wait_s"):
            frame = receiving.wait()
        with self._clock("decode_s"):
            payload = framer.open(frame, segment.numel(), self._received.take(self.peer))
            framer.codec.decode(payload, segment)
        self._incoming.give(buffer)

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        setattr(self._accounting, name, getattr(self._accounting, name) + time.perf_counter() - start)
