"""Messages of weights in flight: packed once on the host, copied to each device, and unpacked there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

import torch

from gradwire.devices import Event
from gradwire.offload.carriers import Carrier
from gradwire.offload.layers import Layer, OffloadLedger
from gradwire.offload.replicas import DeviceEnd


class Delivery:
    """The delivery of a layer group's last message to one device, where one thread unpacks the message.

    While one thread unpacks the weights, all other threads that need these weights wait. If unpacking fails,
    each thread gets the error, until ``expect`` replaces the message.
    """

    def __init__(self, carrier: Carrier, number: int, end: DeviceEnd, ledger: OffloadLedger) -> None:
        self._carrier, self._number, self._end, self._ledger = carrier, number, end, ledger
        self._lock = threading.Lock()
        self._packed: Future[list[Event]] | None = None
        self._decoded: Future[None] | None = None
        self._unpacked: tuple[threading.Thread, Event] | None = None

    def expect(self, packed: Future[list[Event]], decoded: Future[None] | None) -> None:
        """Replace the message, which the host must have decoded, once the current stream follows the old one.

        ``packed`` provides one event per end, at which the bytes have arrived there. ``decoded`` is None if
        the host doesn't decode for this end.
        """
        with self._lock:
            self._order()
            self._packed, self._decoded = packed, decoded

    def settle(self) -> None:
        """Wait until the host has decoded the message. A decoding error is raised by ``arrive``."""
        if self._packed is not None and self._decoded is not None:
            self._decoded.exception()

    def arrive(self) -> None:
        """Make the current stream wait for the weights, and unpack them first if no thread has."""
        if self._packed is not None:
            with self._ledger.clocked("exposed_s"):
                self._lock.acquire()
            try:
                if self._packed is not None:
                    self._unpack(self._packed, self._decoded)
                    self._packed = None
            finally:
                self._lock.release()
        self._order()

    def at_work(self) -> AbstractContextManager[None]:
        """Return a context manager that raises ``DeviceError`` if the end's device fails in its block."""
        return self._end.at_work("a copy of weights")

    def _unpack(self, packed: Future[list[Event]], decoded: Future[None] | None) -> None:
        with self._ledger.clocked("exposed_s"):
            event = packed.result()[self._number]
            if decoded is not None:
                decoded.result()
            else:
                with self.at_work():
                    event.order()
        with self.at_work(), self._ledger.clocked("unpack_s"), torch.no_grad():
            self._carrier.unpack(self._number)
            self._unpacked = threading.current_thread(), self._end.device.event()

    def _order(self) -> None:
        """Make the current stream wait if another thread has unpacked the message on another stream."""
        if self._unpacked is not None:
            thread, event = self._unpacked
            if thread is not threading.current_thread():
                with self.at_work():
                    event.order()


class GroupedLayer(NamedTuple):
    """A layer within a group: the numbers of its masters, and the index of its bits if it has weights."""

    layer: Layer
    masters: range
    bits_index: int | None


class LayerGroup:
    """A group of layers that share messages, with the group's carrier, and a delivery for each end."""

    def __init__(
        self, layers: Sequence[GroupedLayer], carrier: Carrier, deliveries: Sequence[Delivery]
    ) -> None:
        self.layers, self.carrier, self.deliveries = layers, carrier, deliveries
        self.events: list[Event] = []
        """One event per end, after which the last message's bytes have left the host."""

    def wait_for_copies(self) -> None:
        """Wait until the last message's bytes have left the host buffer, so that it can be reused."""
        for delivery, event in zip(self.deliveries, self.events, strict=False):
            with delivery.at_work():
                event.wait()


class Message:
    """A message in flight, with the weights of some layers of a group.

    Once all copies are queued, ``packed`` has one event per end, at which the bytes have arrived there.
    ``decoded`` has a future for each end, by number, whose messages the host decodes.
    """

    def __init__(self, group: LayerGroup, layers: Sequence[GroupedLayer]) -> None:
        self.group, self.layers = group, layers
        self.packed = Future[list[Event]]()
        ends = range(len(group.deliveries))
        self.decoded = {number: Future[None]() for number in ends if group.carrier.on_host(number)}

    def announce(self) -> None:
        """Register the message with the deliveries, so that threads that run replicas wait for it."""
        for number, delivery in enumerate(self.group.deliveries):
            delivery.expect(self.packed, self.decoded.get(number))

    def decode(self, ledger: OffloadLedger) -> None:
        """Decode the message on the calling thread. Errors are raised in the training thread."""
        for number, decoded in self.decoded.items():
            try:
                event = self.packed.result()[number]
                with self.group.deliveries[number].at_work():
                    event.wait()
                with ledger.clocked("decode_s"):
                    self.group.carrier.receive(number)
                decoded.set_result(None)
            except BaseException as error:
                decoded.set_exception(error)

    def fail(self, error: BaseException) -> None:
        """Pass an error to all threads that wait for this message."""
        waits: list[Future[Any]] = [self.packed, *self.decoded.values()]
        for each in waits:
            with suppress(InvalidStateError):
                each.set_exception(error)
