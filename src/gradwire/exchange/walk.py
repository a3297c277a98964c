"""One walk through an order of frames: the place where tensor, codec, frames and link meet."""

from __future__ import annotations

from time import perf_counter

import torch

from gradwire.collectives.frame_order import Action, Do, Segment
from gradwire.costs import ExchangeCost
from gradwire.exchange.copies import Copies
from gradwire.exchange.feedback import Losses
from gradwire.exchange.frames import Outgoing, renumber
from gradwire.exchange.stream import Incoming, Resources, Stream
from gradwire.gpu.contract import STATUS_NBYTES
from gradwire.links.base import Receiving
from gradwire.wire import AVERAGE, HEADER_NBYTES


class Walk:
    """The state of one walk: its stream of frames, and frames kept for forwarding."""

    def __init__(
        self,
        resources: Resources,
        tensor: torch.Tensor,
        actions: list[Action],
        losses: Losses,
        copies: Copies | None = None,
    ) -> None:
        self._own = resources
        self._tensor = tensor
        self._actions = actions
        self._losses = losses
        self._copies = copies
        self._ranks = resources.link.world if resources.flags & AVERAGE else 1  # what a sum is divided by
        self._stream = Stream[Action](resources)
        self._accounting = self._stream.accounting
        self._kept: dict[Segment, Outgoing] = {}

    @property
    def action(self) -> Action | None:
        """What an error was about."""
        return self._stream.place

    @property
    def posted(self) -> list[tuple[int, Receiving]]:
        """The receives under way after an error, with their peers."""
        return self._stream.posted

    def run(self) -> ExchangeCost:
        """Go all the way. On an error ``action`` is the one that failed."""
        start = perf_counter()
        self._losses.begin(self._tensor)
        self._accounting.encode_s += perf_counter() - start
        self._stream.expect(action for action in self._actions if action.receives)
        for action in self._actions:
            self._stream.place = action
            elements = self._tensor[action.segment.start : action.segment.stop]
            if self._copies is not None:
                self._copies.bring(action.segment.start, action.segment.stop)
            if action.receives:
                self._take_in(action, elements, self._stream.receive(self._own.framer, elements.numel()))
            else:
                outgoing = (
                    self._forwarded(action) if action.do is Do.FORWARD else self._encoded(action, elements)
                )
                self._stream.send(action, outgoing, elements.nbytes)
                start = perf_counter()
                self._sent(action, outgoing, elements)
                self._accounting.decode_s += perf_counter() - start
        self._stream.flush()
        start = perf_counter()
        if self._own.link.world == 1:
            self._finish_alone()
        self._losses.commit()
        self._accounting.device_nbytes += self._losses.crossed_nbytes
        self._accounting.decode_s += perf_counter() - start
        return self._accounting

    def _finish_alone(self) -> None:
        """Do for a rank without peers, who takes no step, what steps do."""
        if self._copies is not None:
            self._copies.bring(0, self._tensor.numel())
        self._losses.finished(self._tensor, 0)
        if self._copies is not None:
            self._copies.take_back(0, self._tensor.numel())

    def _encoded(self, action: Action, elements: torch.Tensor) -> Outgoing:
        finished = action.do is Do.PUBLISH
        encode = self._losses.encode_sum if finished else self._losses.encode
        outgoing = self._stream.encode(action, self._own.framer, elements, encode)
        if finished and action.keep:
            self._kept[action.segment] = outgoing
        return outgoing

    def _forwarded(self, action: Action) -> Outgoing:
        outgoing = self._kept[action.segment]
        if not action.keep:
            del self._kept[action.segment]
        sequence = self._own.sent.take(action.peer)
        if sequence != outgoing.sequence:
            self._stream.await_leaving(outgoing)
            renumber(outgoing, sequence)
        return outgoing

    def _sent(self, action: Action, outgoing: Outgoing, elements: torch.Tensor) -> None:
        """Do what can be done while the frame is on its way."""
        start, payload = action.segment.start, outgoing.frame[HEADER_NBYTES:]
        if action.do is Do.SEND_PARTIAL:
            self._losses.sent(payload, elements, start)
        elif action.do is Do.PUBLISH:
            self._losses.published(payload, elements, start, self._ranks)
            if self._copies is not None:
                self._copies.take_back(start, action.segment.stop)

    def _take_in(self, action: Action, elements: torch.Tensor, incoming: Incoming) -> None:
        frame, payload, buffer, sequence = incoming
        if self._losses.ON_DEVICE:
            self._accounting.device_nbytes += payload.numel() + STATUS_NBYTES
        start = perf_counter()
        if action.do is Do.ADD:
            self._own.framer.codec.decode_add(payload, elements)
        else:
            self._losses.received(payload, elements, action.segment.start, self._ranks)
            if self._copies is not None:
                self._copies.take_back(action.segment.start, action.segment.stop)
        self._accounting.decode_s += perf_counter() - start
        if not action.keep:
            self._own.incoming.give(buffer)
            return
        frame = frame[: HEADER_NBYTES + payload.numel()]
        if frame.data_ptr() != buffer.data_ptr():
            frame = buffer[: frame.numel()].copy_(frame)
        floats_nbytes = elements.nbytes if self._own.framer.floats else 0
        self._kept[action.segment] = Outgoing(frame, buffer, self._own.incoming, sequence, floats_nbytes)
