"""A signal that ends a parent ends what it has started, by an exception; later signals are as before."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest

from gradwire.launch.launched import ending_on_signals

ENDING = [signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_leaves_the_block_with_the_exit_code_of_a_shell(number: signal.Signals) -> None:
    cleaned = []

    def work() -> None:
        with ending_on_signals():
            try:
                signal.raise_signal(number)
            finally:
                cleaned.append(number)

    with pytest.raises(SystemExit) as caught:
        work()
    assert caught.value.code == 128 + number
    assert cleaned == [number]


def test_the_handlers_of_before_are_back_however_the_block_ends() -> None:
    handlers = [lambda *_: None, lambda *_: None]
    before = [signal.signal(number, handler) for number, handler in zip(ENDING, handlers, strict=True)]
    try:
        with suppress(ZeroDivisionError), ending_on_signals():
            assert not {*handlers} & {signal.getsignal(number) for number in ENDING}
            _ = 1 // 0
        assert [signal.getsignal(number) for number in ENDING] == handlers
    finally:
        for number, handler in zip(ENDING, before, strict=True):
            signal.signal(number, handler)


def test_an_interrupt_stays_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), ending_on_signals():
        signal.raise_signal(signal.SIGINT)
