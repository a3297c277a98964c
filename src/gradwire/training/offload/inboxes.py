"""The last message of a route at one place: any thread may need its weights, and one of them unpacks it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch

from gradwire.devices import Event
from gradwire.training.offload.carriers import Carrier
from gradwire.training.offload.ledger import OffloadLedger
from gradwire.training.offload.places import Place


class Message(NamedTuple):
    """A message on its way to a place.

    Attributes
    ----------
    packed
        The moments at which its bytes are at each place.
    received
        When the host has decoded it for this place; None where the host decodes nothing.
    """

    packed: Future[list[Event]]
    received: Future[None] | None


class Inbox:
    """One end of a route, with a lock that is held until the message is unpacked.

    A thread that needs the weights while another one unpacks them waits for it. If unpacking fails, each
    thread gets the error, until ``expect`` replaces the message.

    Parameters
    ----------
    carrier, end
        What unpacks, and the number of this end.
    place
        Where the end is.
    """

    def __init__(self, carrier: Carrier, end: int, place: Place, ledger: OffloadLedger) -> None:
        self._carrier, self._end, self._place, self._ledger = carrier, end, place, ledger
        self._lock = threading.Lock()
        self._message: Message | None = None
        self._unpacked: tuple[threading.Thread, Event] | None = None

    def expect(self, message: Message) -> None:
        """Replace the last message; what follows the current stream comes after it was unpacked.

        The host has decoded that one (``settle``).
        """
        with self._lock:
            self._order()
            self._message = message

    def settle(self) -> None:
        """Wait until the host has decoded the message. ``arrive`` raises its errors."""
        message = self._message
        if message is not None and message.received is not None:
            message.received.exception()

    def arrive(self) -> None:
        """Let the current stream wait for the weights, and unpack them if no thread has; raise its errors."""
        if self._message is not None:
            with self._ledger.clocked("exposed_s"):
                self._lock.acquire()
            try:
                if self._message is not None:
                    self._unpack(self._message)
                    self._message = None
            finally:
                self._lock.release()
        self._order()

    def _unpack(self, message: Message) -> None:
        with self._ledger.clocked("exposed_s"):
            event = message.packed.result()[self._end]
            if message.received is not None:
                message.received.result()
            else:
                with self._at_work():
                    event.order()
        with self._at_work(), self._ledger.clocked("unpack_s"), torch.no_grad():
            self._carrier.unpack(self._end)
            self._unpacked = threading.current_thread(), self._place.device.event()

    def _order(self) -> None:
        """Let the current stream wait if another thread, with a stream of its own, has unpacked."""
        if self._unpacked is not None:
            thread, event = self._unpacked
            if thread is not threading.current_thread():
                with self._at_work():
                    event.order()

    def _at_work(self) -> AbstractContextManager[None]:
        return self._place.at_work("a copy of weights")
