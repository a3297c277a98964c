"""Ctrl-C is a byte to read while a run lasts, and what it was before and afterwards."""

from __future__ import annotations

import signal
import threading

import pytest

from gradwire.launch.launched import interrupts_held
from gradwire_lab.testbed.runner import interrupts


def test_every_interrupt_is_a_byte_and_raises_nothing() -> None:
    with interrupts() as arrivals:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert arrivals.recv(64) == bytes([signal.SIGINT] * 2)
        with pytest.raises(BlockingIOError):
            arrivals.recv(64)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_handler_and_descriptor_of_before_are_back_after_an_error() -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), interrupts():
        _ = 1 // 0
    assert signal.getsignal(signal.SIGINT) is handler
    assert signal.set_wakeup_fd(-1) == -1


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts() as arrivals:
            signal.raise_signal(signal.SIGINT)
            arrivals.setblocking(False)
            with pytest.raises(BlockingIOError):
                arrivals.recv(1)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_leaves_the_handler_to_the_main_one() -> None:
    handler, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert seen == [handler]


def test_a_held_interrupt_comes_afterwards() -> None:
    held = []

    def interrupt() -> None:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            held.append(signal.sigpending())

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert held == [{signal.SIGINT}]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
