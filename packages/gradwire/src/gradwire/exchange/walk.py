"""One run of a schedule over a link, frame by frame."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch

from gradwire.codecs import Codec
from gradwire.codecs.wrappers import Scaled
from gradwire.collectives.frame_order import AHEAD, Action, Do, Segment
from gradwire.costs import ExchangeCost, Scales
from gradwire.exchange.feedback import ErrorFeedback, commit_all
from gradwire.exchange.frames import Buffers, Encode, Framer, Outgoing
from gradwire.exchange.views import SegmentCopies
from gradwire.gpu.table import STATUS_NBYTES
from gradwire.links.base import Link, Receiving, Sending
from gradwire.wire import AVERAGE, HEADER_NBYTES, Sequences, renumber_frame


@dataclass(frozen=True, slots=True)
class StreamResources:
    """The resources of one stream: link, buffers, sequence numbers, and timeout."""

    link: Link
    incoming: Buffers
    sent: Sequences
    received: Sequences
    flags: int
    timeout_s: float
    keepalive: bool = True  # other ranks' traffic counts as progress: if one rank stops, all ranks do


@dataclass(frozen=True, slots=True)
class RunPart:
    """The values of a run that have one codec: 1-D float32, changed in place.

    ``copies`` are the copies between the bucket and ``tensor``, if any. ``filled`` is the fraction of
    ``tensor`` that isn't padding. ``ranks``, an argument of methods, is the divisor of a sum.
    """

    tensor: torch.Tensor
    framer: Framer
    feedback: ErrorFeedback
    copies: SegmentCopies | None = None
    filled: float = 1

    def elements(self, segment: Segment) -> torch.Tensor:
        """Return a segment's values, which are copied from the bucket before their first use."""
        if self.copies is not None:
            self.copies.load(segment.start, segment.stop)
        return self.tensor[segment.start : segment.stop]

    def encoder(self, action: Action) -> Encode:
        """Return the function that encodes the values of an action that sends."""
        return self.feedback.encode_sum if action.do is Do.PUBLISH else self.feedback.encode

    def sent(self, action: Action, payload: torch.Tensor, elements: torch.Tensor, ranks: int) -> None:
        """Update the error feedback after an encoding, and adopt the decoded values of finished sums."""
        segment = action.segment
        if action.do is Do.SEND_PARTIAL:
            self.feedback.sent(payload, elements, segment.start)
        elif action.do is Do.PUBLISH:
            self.feedback.published(payload, elements, segment.start, ranks)
            self._store(segment)

    def take(self, action: Action, payload: torch.Tensor, elements: torch.Tensor, ranks: int) -> None:
        """Add or store a received payload. Raises ``PayloadError``."""
        if action.do is Do.ADD:
            self.framer.codec.decode_add(payload, elements)
        else:
            self.feedback.received(payload, elements, action.segment.start, ranks)
            self._store(action.segment)

    def finish_alone(self) -> None:
        """Finish the values of a rank without peers, whose schedule has no steps."""
        whole = Segment(0, 0, 0, self.tensor.numel())
        self.feedback.finished(self.elements(whole), 0)
        self._store(whole)

    def _store(self, segment: Segment) -> None:
        if self.copies is not None:
            self.copies.store(segment.start, segment.stop)


def scales_of(codec: Codec, payload: torch.Tensor) -> Scales:
    """Return the scale of a payload, if the codec scales its values."""
    return Scales.of(codec.exponent_of(payload)) if isinstance(codec, Scaled) else Scales()


def raw_nbytes(parts: Sequence[RunPart], sent_nbytes: Sequence[int]) -> float:
    """Return the sent bytes of floats without padding; ``sent_nbytes`` has each part's bytes with padding."""
    return sum(nbytes * part.filled for part, nbytes in zip(parts, sent_nbytes, strict=True))


class SchedulePosition(Protocol):
    """The position of one frame in a rank's schedule."""

    @property
    def peer(self) -> int:
        """The rank of the peer."""

    @property
    def order(self) -> tuple[int, int]:
        """The order up to which receives must be posted before a wait for this send."""

    @property
    def keep(self) -> bool:
        """Whether the caller keeps the frame's buffer."""


P = TypeVar("P", bound=SchedulePosition)


class Incoming(NamedTuple):
    """A validated received frame, with its receive buffer."""

    frame: torch.Tensor
    payload: torch.Tensor
    buffer: torch.Tensor
    sequence: int


@dataclass(slots=True)
class FrameStream(Generic[P]):
    """A window of sends in flight and a window of posted receives, each completed in order.

    A run has one stream for all its peers; a parameter server has a stream for each worker. ``accounting``
    has the frames, bytes, and seconds so far. ``place`` is the frame to name in errors: the current one, or
    the one being waited for.
    """

    _resources: StreamResources
    accounting: ExchangeCost = field(default_factory=ExchangeCost)
    place: P | None = None
    _expected: Iterator[P] = field(default_factory=lambda: iter(()))
    _posted: deque[tuple[P, Receiving, torch.Tensor]] = field(default_factory=deque)
    _in_flight: deque[tuple[P, Sending, Outgoing]] = field(default_factory=deque)
    _posted_up_to: tuple[float, float] = (math.inf, 0)

    def expect(self, places: Iterable[P]) -> None:
        """Post receives for the first frames of ``places``; every received frame posts the next receive."""
        self._expected = iter(places)
        for _ in range(AHEAD):
            self._post()

    def receive(self, framer: Framer, count: int) -> Incoming:
        """Wait for the next expected frame, which holds ``count`` values, and return it."""
        place, receiving, buffer = self._posted.popleft()
        start = perf_counter()
        frame = receiving.wait(self._resources.timeout_s, keepalive=self._resources.keepalive)
        self.accounting.wait_s += perf_counter() - start
        self._post()
        sequence = self._resources.received.take(place.peer)
        start = perf_counter()
        payload = framer.open(frame, count, sequence, self._resources.flags)
        self.accounting.decode_s += perf_counter() - start
        return Incoming(frame, payload, buffer, sequence)

    @property
    def posted(self) -> list[tuple[int, Receiving]]:
        """The posted receives and their peers."""
        return [(place.peer, receiving) for place, receiving, _ in self._posted]

    def encode(
        self, place: P, framer: Framer, elements: torch.Tensor, encode: Encode | None = None
    ) -> Outgoing:
        """Return the next frame for the peer of ``place``, encoded by ``encode`` or by the codec."""
        start = perf_counter()
        sequence = self._resources.sent.take(place.peer)
        outgoing = framer.encode(elements, sequence, self._resources.flags, encode=encode)
        self.accounting.encode_s += perf_counter() - start
        self.accounting.scales += scales_of(framer.codec, outgoing.frame[HEADER_NBYTES:])
        return outgoing

    def send(self, place: P, outgoing: Outgoing, raw_nbytes: int = 0) -> None:
        """Start to send a frame, which encodes ``raw_nbytes`` of floats."""
        while len(self._in_flight) >= AHEAD and self._in_flight[0][0].order <= self._posted_up_to:
            self._retire()
        self.accounting.frames += 1
        self.accounting.raw_nbytes += raw_nbytes
        self.accounting.wire_nbytes += outgoing.frame.numel()
        link, frame = self._resources.link, outgoing.frame
        if outgoing.floats_nbytes:
            sending = link.isend_marked(place.peer, frame, outgoing.floats_nbytes)
        else:
            sending = link.isend(place.peer, frame)
        self._in_flight.append((place, sending, outgoing))

    def flush(self) -> None:
        """Wait until all frames are sent."""
        while self._in_flight:
            self._retire()

    def await_leaving(self, outgoing: Outgoing) -> None:
        """Wait until no send uses the frame ``outgoing``, after posting the receives that this wait needs."""
        while any(sent is outgoing for _, _, sent in self._in_flight):
            while self._posted_up_to < self._in_flight[0][0].order:
                self._post()
            self._retire()

    def _retire(self) -> None:
        in_turn, (self.place, sending, outgoing) = self.place, self._in_flight.popleft()
        start = perf_counter()
        sending.wait(self._resources.timeout_s, keepalive=self._resources.keepalive)
        self.accounting.wait_s += perf_counter() - start
        if not self.place.keep:
            outgoing.home.give(outgoing.buffer)
        self.place = in_turn

    def _post(self) -> None:
        place = next(self._expected, None)
        if place is None:
            self._posted_up_to = (math.inf, 0)
            return
        buffer = self._resources.incoming.take()
        self._posted.append((place, self._resources.link.irecv(place.peer, buffer), buffer))
        self._posted_up_to = place.order


class ScheduleRun:
    """One run of a schedule, with its stream of frames and the frames kept for forwarding."""

    def __init__(self, resources: StreamResources, parts: Sequence[RunPart], actions: list[Action]) -> None:
        self._resources, self._parts, self._actions = resources, parts, actions
        self._sent_nbytes = [0] * len(parts)
        self._ranks = resources.link.world if resources.flags & AVERAGE else 1  # the divisor of a sum
        self._stream = FrameStream[Action](resources)
        self._accounting = self._stream.accounting
        self._kept: dict[Segment, Outgoing] = {}

    @property
    def action(self) -> Action | None:
        """The action that failed, if ``run`` raised an error."""
        return self._stream.place

    @property
    def posted(self) -> list[tuple[int, Receiving]]:
        """The receives that were posted when ``run`` raised an error, and their peers."""
        return self._stream.posted

    def run(self) -> ExchangeCost:
        """Run the whole schedule and return its cost. After an error, ``action`` is the failed action."""
        start = perf_counter()
        for part in self._parts:
            part.feedback.begin(part.tensor)
        self._accounting.encode_s += perf_counter() - start
        self._stream.expect(action for action in self._actions if action.receives)
        for action in self._actions:
            self._stream.place = action
            part = self._parts[action.segment.part]
            elements = part.elements(action.segment)
            if action.receives:
                self._take_in(action, part, elements, self._stream.receive(part.framer, elements.numel()))
            else:
                outgoing = self._frame_for(action, part, elements)
                self._stream.send(action, outgoing)
                self._sent_nbytes[action.segment.part] += elements.nbytes
                start = perf_counter()
                part.sent(action, outgoing.frame[HEADER_NBYTES:], elements, self._ranks)
                self._accounting.decode_s += perf_counter() - start
        self._stream.flush()
        start = perf_counter()
        if self._resources.link.world == 1:
            for part in self._parts:
                part.finish_alone()
        commit_all([part.feedback for part in self._parts])
        for part in self._parts:
            self._accounting.device_nbytes += part.feedback.crossed_nbytes
        self._accounting.raw_nbytes = raw_nbytes(self._parts, self._sent_nbytes)
        self._accounting.decode_s += perf_counter() - start
        return self._accounting

    def _frame_for(self, action: Action, part: RunPart, elements: torch.Tensor) -> Outgoing:
        """Return the frame to send: an encoded segment, or a kept frame with a new sequence number."""
        if action.do is not Do.FORWARD:
            outgoing = self._stream.encode(action, part.framer, elements, part.encoder(action))
            if action.do is Do.PUBLISH and action.keep:
                self._kept[action.segment] = outgoing
            return outgoing
        outgoing = self._kept[action.segment]
        if not action.keep:
            del self._kept[action.segment]
        sequence = self._resources.sent.take(action.peer)
        if sequence != outgoing.sequence:
            self._stream.await_leaving(outgoing)
            outgoing.frame, outgoing.sequence = renumber_frame(outgoing.frame, sequence), sequence
        return outgoing

    def _take_in(self, action: Action, part: RunPart, elements: torch.Tensor, incoming: Incoming) -> None:
        frame, payload, buffer, sequence = incoming
        if part.feedback.ON_DEVICE:
            self._accounting.device_nbytes += payload.numel() + STATUS_NBYTES
        start = perf_counter()
        part.take(action, payload, elements, self._ranks)
        self._accounting.decode_s += perf_counter() - start
        if not action.keep:
            self._resources.incoming.give(buffer)
            return
        frame = frame[: HEADER_NBYTES + payload.numel()]
        if frame.data_ptr() != buffer.data_ptr():
            frame = buffer[: frame.numel()].copy_(frame)
        floats_nbytes = elements.nbytes if part.framer.floats else 0
        self._kept[action.segment] = Outgoing(
            frame, buffer, self._resources.incoming, sequence, floats_nbytes
        )
