"""Frames that one rank sends and receives: the windows of both, their buffers, sequences and accounts.

A walk has one for all its peers, and a parameter server one for each worker that it talks with.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch

from gradwire.codecs.wrappers.scaled import Scaled
from gradwire.collectives.frame_order import AHEAD
from gradwire.costs import ExchangeCost, Scales
from gradwire.exchange.frames import Buffers, Framer, Outgoing, Sequences
from gradwire.links.base import Link, Receiving, Sending
from gradwire.wire import HEADER_NBYTES


@dataclass(frozen=True, slots=True)
class Resources:
    """What outlives one stream and is lent to it, the flags of its frames, and how it waits."""

    link: Link
    framer: Framer
    incoming: Buffers
    sent: Sequences
    received: Sequences
    flags: int
    timeout_s: float
    keepalive: bool = True  # all ranks stop where one does


class Place(Protocol):
    """Where a frame comes or goes, its place in the order of all, and whether it is needed again."""

    @property
    def peer(self) -> int:
        """The other rank."""

    @property
    def order(self) -> tuple[int, int]:
        """A rank waits for a send only if its own receives up to that order are posted."""

    @property
    def keep(self) -> bool:
        """Whether the frame's buffer stays with the caller."""


P = TypeVar("P", bound=Place)


class Incoming(NamedTuple):
    """A frame that has come and passed the door, with the buffer that was posted for it."""

    frame: torch.Tensor
    payload: torch.Tensor
    buffer: torch.Tensor
    sequence: int


@dataclass(slots=True)
class Stream(Generic[P]):
    """A window of sends under way and one of receives posted, both worked off in their order.

    Attributes
    ----------
    accounting
        What has passed so far, and the seconds of waiting, encoding and opening.
    place
        What an error is about: the frame whose turn it is, or that is waited for.
    """

    _own: Resources
    accounting: ExchangeCost = field(default_factory=ExchangeCost)
    place: P | None = None
    _expected: Iterator[P] = field(default_factory=lambda: iter(()))
    _posted: deque[tuple[P, Receiving, torch.Tensor]] = field(default_factory=deque)
    _in_flight: deque[tuple[P, Sending, Outgoing]] = field(default_factory=deque)
    _posted_up_to: tuple[float, float] = (math.inf, 0)

    def expect(self, places: Iterable[P]) -> None:
        """Post receives for the first of these frames; the others follow as frames come."""
        self._expected = iter(places)
        for _ in range(AHEAD):
            self._post()

    def receive(self, framer: Framer, count: int) -> Incoming:
        """Wait for the frame expected next, which holds ``count`` values."""
        place, receiving, buffer = self._posted.popleft()
        start = perf_counter()
        frame = receiving.wait(self._own.timeout_s, keepalive=self._own.keepalive)
        self.accounting.wait_s += perf_counter() - start
        self._post()
        sequence = self._own.received.take(place.peer)
        start = perf_counter()
        payload = framer.open(frame, count, sequence, self._own.flags)
        self.accounting.decode_s += perf_counter() - start
        return Incoming(frame, payload, buffer, sequence)

    @property
    def posted(self) -> list[tuple[int, Receiving]]:
        """The receives that nobody has waited for, with their peers."""
        return [(place.peer, receiving) for place, receiving, _ in self._posted]

    def encode(
        self,
        place: P,
        framer: Framer,
        elements: torch.Tensor,
        encode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    ) -> Outgoing:
        """Return the next frame for its peer, which ``encode`` makes if that is given."""
        start = perf_counter()
        sequence = self._own.sent.take(place.peer)
        outgoing = framer.encode(elements, sequence, self._own.flags, encode=encode)
        self.accounting.encode_s += perf_counter() - start
        if isinstance(framer.codec, Scaled):
            exponent = framer.codec.exponent_of(outgoing.frame[HEADER_NBYTES:])
            self.accounting.scales += Scales.of(exponent)
        return outgoing

    def send(self, place: P, outgoing: Outgoing, raw_nbytes: int = 0) -> None:
        """Begin to send a frame that carries so many bytes of floats."""
        while len(self._in_flight) >= AHEAD and self._in_flight[0][0].order <= self._posted_up_to:
            self._retire()
        self.accounting.frames += 1
        self.accounting.raw_nbytes += raw_nbytes
        self.accounting.wire_nbytes += outgoing.frame.numel()
        link, floats_nbytes = self._own.link, outgoing.floats_nbytes
        if floats_nbytes:
            sending = link.isend_marked(place.peer, outgoing.frame, floats_nbytes)
        else:
            sending = link.isend(place.peer, outgoing.frame)
        self._in_flight.append((place, sending, outgoing))

    def flush(self) -> None:
        """Wait until all frames have left."""
        while self._in_flight:
            self._retire()

    def await_leaving(self, outgoing: Outgoing) -> None:
        """Wait until no send needs a frame any more; first post what must be posted before such a wait."""
        while any(sent is outgoing for _, _, sent in self._in_flight):
            while self._posted_up_to < self._in_flight[0][0].order:
                self._post()
            self._retire()

    def _retire(self) -> None:
        going_on, (self.place, sending, outgoing) = self.place, self._in_flight.popleft()
        start = perf_counter()
        sending.wait(self._own.timeout_s, keepalive=self._own.keepalive)
        self.accounting.wait_s += perf_counter() - start
        if not self.place.keep:
            outgoing.home.give(outgoing.buffer)
        self.place = going_on

    def _post(self) -> None:
        place = next(self._expected, None)
        if place is None:
            self._posted_up_to = (math.inf, 0)
            return
        buffer = self._own.incoming.take()
        self._posted.append((place, self._own.link.irecv(place.peer, buffer), buffer))
        self._posted_up_to = place.order
