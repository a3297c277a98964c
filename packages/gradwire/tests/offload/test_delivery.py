from __future__ import annotations

import threading
from concurrent.futures import Future
from unittest import mock

import pytest

from gradwire.devices import Event
from gradwire.devices.base import CPU, DONE
from gradwire.errors import DeviceError
from gradwire.offload.delivery import Delivery
from gradwire.offload.layers import OffloadLedger
from gradwire.offload.replicas import DeviceEnd


def delivery(carrier: mock.Mock, event: Event = DONE) -> tuple[Delivery, Future[list[Event]], OffloadLedger]:
    ledger, packed = OffloadLedger(), Future[list[Event]]()
    device = mock.Mock(wraps=CPU)
    device.event.side_effect = None
    device.event.return_value = event
    own = Delivery(carrier, 0, DeviceEnd(device, []), ledger)
    own.expect(packed, None)
    return own, packed, ledger


def test_a_message_is_unpacked_once_and_every_thread_waits_until_it_is() -> None:
    carrier, begun, go = mock.Mock(), threading.Event(), threading.Event()

    def unpack(_: int) -> None:
        begun.set()
        go.wait(30)

    carrier.unpack.side_effect = unpack
    own, packed, ledger = delivery(carrier)
    packed.set_result([DONE])
    threads = [threading.Thread(target=own.arrive) for _ in range(3)]
    threads[0].start()
    assert begun.wait(30)
    for each in threads[1:]:
        each.start()
        each.join(0.05)
        assert each.is_alive(), "the weights aren't there"
    go.set()
    for each in threads:
        each.join(30)
    carrier.unpack.assert_called_once_with(0)
    assert ledger.exposed_s > 0.05
    own.arrive()
    carrier.unpack.assert_called_once()


def test_a_stream_of_another_thread_waits_for_the_one_that_unpacked() -> None:
    event = mock.Mock(spec=Event)
    own, packed, _ = delivery(mock.Mock(), event)
    packed.set_result([DONE])
    thread = threading.Thread(target=own.arrive)
    thread.start()
    thread.join()
    event.order.assert_not_called()
    own.arrive()
    assert event.order.call_count == 1
    own.expect(packed, None)
    assert event.order.call_count == 2, "what replaces the message comes after it was unpacked"
    own.arrive()
    assert event.order.call_count == 2


def test_an_error_is_every_threads_until_the_message_is_replaced() -> None:
    carrier = mock.Mock()
    own, packed, _ = delivery(carrier)
    packed.set_exception(ArithmeticError("no bits"))
    for _ in range(2):
        with pytest.raises(ArithmeticError, match="no bits"):
            own.arrive()
    again = Future[list[Event]]()
    again.set_result([DONE])
    own.expect(again, None)
    carrier.unpack.side_effect = RuntimeError("gone")
    for _ in range(2):
        with pytest.raises(DeviceError, match="failed during a copy of weights"):
            own.arrive()
    carrier.unpack.side_effect = None
    own.arrive()


def test_what_the_host_decodes_is_waited_for_and_settles_with_its_error() -> None:
    carrier, received = mock.Mock(), Future[None]()
    own, packed, _ = delivery(carrier)
    own.settle()
    packed.set_result([DONE])
    own.expect(packed, received)
    thread = threading.Thread(target=own.settle)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    received.set_exception(ValueError("torn"))
    thread.join(30)
    assert not thread.is_alive()
    with pytest.raises(ValueError, match="torn"):
        own.arrive()
    carrier.unpack.assert_not_called()
