"""Signals during a run of the native engine on the main thread; ``exchange/test_engine.py`` has the rest."""

from __future__ import annotations

import signal
import socket
import threading
import time
from types import FrameType

import pytest
import torch

from gradwire.codecs import parse
from gradwire.errors import ExchangeError
from gradwire.exchange import Exchange
from gradwire.links.sockets import SocketLink
from gradwire.plan import Plan

pytestmark = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals need the main thread"
)


class AlarmedError(Exception):
    """Raised by a signal's handler."""


def exchange_without_an_answer(timeout_s: float) -> tuple[Exchange, list[socket.socket]]:
    """Return an exchange whose peer never answers, and both sockets."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return Exchange(SocketLink(0, {1: ours}, timeout_s), Plan(parse("fp8"), "ring")), [ours, theirs]


def test_a_handler_that_raises_ends_the_run() -> None:
    def handle(_number: int, _frame: FrameType | None) -> None:
        raise AlarmedError("now")

    exchange, sockets = exchange_without_an_answer(60.0)
    before = signal.signal(signal.SIGALRM, handle)
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(AlarmedError, match="now"):
            exchange.all_reduce(torch.ones(100))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 20.0
    assert sockets[0].fileno() == -1, "the link is closed, which notifies the peer"
    assert sockets[1].recv(1 << 20), "the frame that had been sent"
    with pytest.raises(ExchangeError, match="now"):
        exchange.all_reduce(torch.ones(100))
    sockets[1].close()


def test_a_handler_that_returns_does_not_disturb_the_run() -> None:
    handled: list[int] = []
    exchange, sockets = exchange_without_an_answer(1.0)
    before = signal.signal(signal.SIGALRM, lambda number, _: handled.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(ExchangeError, match="no progress within 1 s"):
            exchange.all_reduce(torch.ones(100))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert len(handled) >= 3
    sockets[1].close()
