"""One walk through an order of frames: the place where tensor, codec, frames and link meet."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from gradwire.collectives.frame_order import AHEAD, Action, Do, Segment
from gradwire.exchange.accounting import Accounting
from gradwire.exchange.feedback import Losses
from gradwire.exchange.frames import Buffers, Framer, Outgoing, Sequences, renumber
from gradwire.links.base import Link, Receiving, Sending
from gradwire.wire import AVERAGE, HEADER_NBYTES


@dataclass(frozen=True, slots=True)
class Resources:
    """What an exchange lends to its walks: what outlives one of them, its frames' flags and its timeout."""

    link: Link
    framer: Framer
    incoming: Buffers
    sent: Sequences
    received: Sequences
    flags: int
    timeout_s: float


class Walk:
    """The state of one walk: frames in flight, receives posted, frames kept for forwarding."""

    def __init__(
        self, resources: Resources, tensor: torch.Tensor, actions: list[Action], losses: Losses
    ) -> None:
        self.accounting = Accounting()
        self.action: Action | None = None
        self._own = resources
        self._tensor = tensor
        self._actions = actions
        self._losses = losses
        self._to_post = iter([action for action in actions if action.receives])
        self._posted: deque[tuple[Receiving, torch.Tensor]] = deque()
        self._in_flight: deque[tuple[Action, Sending, Outgoing]] = deque()
        self._posted_up_to: tuple[float, float] = (-1, 0)
        self._kept: dict[Segment, Outgoing] = {}

    def run(self) -> Accounting:
        """Go all the way. On an error ``self.action`` is the one that failed."""
        handlers: dict[Do, Callable[[Action], None]] = {
            Do.SEND_PARTIAL: self._send_partial,
            Do.PUBLISH: self._publish,
            Do.FORWARD: self._forward,
            Do.ADD: self._receive,
            Do.STORE: self._receive,
        }
        start = perf_counter()
        self._losses.begin(self._tensor)
        self.accounting.encode_s += perf_counter() - start
        for _ in range(AHEAD):
            self._post()
        for action in self._actions:
            self.action = action
            handlers[action.do](action)
        while self._in_flight:
            self._retire()
        start = perf_counter()
        self._losses.commit()
        self.accounting.decode_s += perf_counter() - start
        return self.accounting

    def _send_partial(self, action: Action) -> None:
        elements = self._elements(action)
        outgoing = self._encode(action, elements)
        self._isend(action, outgoing)
        start = perf_counter()
        self._losses.sent(outgoing.frame[HEADER_NBYTES:], elements, action.segment.start)
        self.accounting.decode_s += perf_counter() - start

    def _publish(self, action: Action) -> None:
        elements = self._elements(action)
        outgoing = self._encode(action, elements)
        start = perf_counter()
        self._losses.published(outgoing.frame[HEADER_NBYTES:], elements, action.segment.start)
        self.accounting.decode_s += perf_counter() - start
        if action.keep:
            self._kept[action.segment] = outgoing
        self._isend(action, outgoing)
        start = perf_counter()
        self._finish(elements, action.segment.start)
        self.accounting.decode_s += perf_counter() - start

    def _forward(self, action: Action) -> None:
        outgoing = self._kept[action.segment]
        if not action.keep:
            del self._kept[action.segment]
        sequence = self._own.sent.take(action.peer)
        if sequence != outgoing.sequence:
            self._await_leaving(outgoing)
            renumber(outgoing, sequence)
        self._isend(action, outgoing)

    def _receive(self, action: Action) -> None:
        receiving, buffer = self._posted.popleft()
        start = perf_counter()
        frame = receiving.wait(self._own.timeout_s, keepalive=True)  # all ranks stop where one does
        self.accounting.wait_s += perf_counter() - start
        self._post()
        elements = self._elements(action)
        sequence = self._own.received.take(action.peer)
        start = perf_counter()
        payload = self._own.framer.open(frame, elements.numel(), sequence, self._own.flags)
        if action.do is Do.ADD:
            self._own.framer.codec.decode_add(payload, elements)
        else:
            self._own.framer.codec.decode(payload, elements)
            self._finish(elements, action.segment.start)
        self.accounting.decode_s += perf_counter() - start
        if not action.keep:
            self._own.incoming.give(buffer)
            return
        frame = frame[: HEADER_NBYTES + payload.numel()]
        if frame.data_ptr() != buffer.data_ptr():
            frame = buffer[: frame.numel()].copy_(frame)
        self._kept[action.segment] = Outgoing(frame, buffer, self._own.incoming, sequence)

    def _finish(self, elements: torch.Tensor, start: int) -> None:
        """Turn a finished sum into the average, if that is wanted: here, where a cache still holds it."""
        if self._own.flags & AVERAGE:
            elements.div_(self._own.link.world)
        self._losses.finished(elements, start)

    def _encode(self, action: Action, elements: torch.Tensor) -> Outgoing:
        start = perf_counter()
        sequence = self._own.sent.take(action.peer)
        outgoing = self._own.framer.encode(elements, sequence, self._own.flags)
        self.accounting.encode_s += perf_counter() - start
        return outgoing

    def _isend(self, action: Action, outgoing: Outgoing) -> None:
        while len(self._in_flight) >= AHEAD and self._in_flight[0][0].order <= self._posted_up_to:
            self._retire()
        self.accounting.frames += 1
        self.accounting.raw_nbytes += 4 * (action.segment.stop - action.segment.start)
        self.accounting.wire_nbytes += outgoing.frame.numel()
        self._in_flight.append((action, self._own.link.isend(action.peer, outgoing.frame), outgoing))

    def _await_leaving(self, outgoing: Outgoing) -> None:
        """Wait until no send needs a frame any more; first post what must be posted before such a wait."""
        while any(sent is outgoing for _, _, sent in self._in_flight):
            while self._posted_up_to < self._in_flight[0][0].order:
                self._post()
            self._retire()

    def _retire(self) -> None:
        going_on, (self.action, sending, outgoing) = self.action, self._in_flight.popleft()
        start = perf_counter()
        sending.wait(self._own.timeout_s, keepalive=True)
        self.accounting.wait_s += perf_counter() - start
        if not self.action.keep:
            outgoing.home.give(outgoing.buffer)
        self.action = going_on

    def _post(self) -> None:
        action = next(self._to_post, None)
        if action is None:
            self._posted_up_to = (math.inf, 0)
            return
        buffer = self._own.incoming.take()
        self._posted.append((self._own.link.irecv(action.peer, buffer), buffer))
        self._posted_up_to = action.order

    def _elements(self, action: Action) -> torch.Tensor:
        return self._tensor[action.segment.start : action.segment.stop]
