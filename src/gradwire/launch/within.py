"""A call that may never come back, with a limit: it has a thread, which is left where it is after that.

The end of the process wakes such threads first: one that came back from torch's code while the interpreter
ends would abort it.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TypeVar

Answer = TypeVar("Answer")

_END_S = 0.5
_calls: dict[threading.Thread, int | None] = {}
"""The calls under way, and the port of who has to answer."""


def within(call: Callable[[], Answer], timeout_s: float, port: int | None = None) -> Answer:
    """Return what ``call`` does; ``port`` is where the one listens who may never answer it.

    Raises what ``call`` raises, and ``TimeoutError`` where it does nothing in time. It goes on then, in vain.
    """
    answers: SimpleQueue[tuple[Answer | None, BaseException | None]] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))
        finally:
            _calls.pop(threading.current_thread(), None)

    thread = threading.Thread(target=ask, name="gradwire asks", daemon=True)
    _calls[thread] = port
    thread.start()
    try:
        answer, error = answers.get(timeout=timeout_s)
    except Empty:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]  # what call returns, which may be None


def _wake() -> None:
    """Let threads that still wait for an answer have done with torch's code before the interpreter ends."""
    left = dict(_calls)
    join_all(left, _END_S)
    silent = {port for thread, port in left.items() if thread.is_alive() and port is not None}
    if silent:
        _shut_down(silent)
        join_all(left, _END_S)


def join_all(threads: Iterable[threading.Thread], timeout_s: float) -> None:
    """Wait until all of ``threads`` have ended, so long at most for all of them together."""
    deadline = monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))


def _shut_down(ports: set[int]) -> None:
    """End this process's connections to these ports, at which nobody has answered."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connection:
            peer = connection.getpeername()
            if isinstance(peer, tuple) and peer[1] in ports:  # one of a Unix socket has but a path
                connection.shutdown(socket.SHUT_RDWR)


atexit.register(_wake)
os.register_at_fork(after_in_child=_calls.clear)
