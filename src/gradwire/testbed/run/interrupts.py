"""Turn Ctrl-C into an event to wait for, so that it can't interrupt a run in the middle of a message."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts() -> Iterator[socket.socket]:
    """Yield a socket on which a byte arrives for every SIGINT, which raises nothing meanwhile.

    If SIGINT is ignored, or if this isn't the main thread, no byte arrives, because this thread mustn't act
    on the signal.
    """
    arrivals, notices = socket.socketpair()
    with arrivals, notices:
        if threading.current_thread() is not threading.main_thread() or _is_ignored():
            yield arrivals
            return
        arrivals.setblocking(False)
        notices.setblocking(False)
        handler = signal.signal(signal.SIGINT, lambda *_: None)
        before = signal.set_wakeup_fd(notices.fileno(), warn_on_full_buffer=False)
        try:
            yield arrivals
        finally:
            signal.set_wakeup_fd(before)
            signal.signal(signal.SIGINT, handler)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold back SIGINT in this thread, and in the processes that it starts meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_ignored() -> bool:
    return signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None)
