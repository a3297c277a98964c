"""Daemon threads that end before the interpreter does.

At shutdown, the interpreter ends every daemon thread that returns to Python. A thread that returns from a
kernel or from Gloo has C++ on its stack, so that ending it aborts the process with code 134, and a launcher
would restart the finished job. So the process first waits, up to a limit, for running work.

Then the process closes all connections, which would keep it alive until the peers end, and waits briefly for
the interrupted threads. Both waits are in ``atexit``, after the end of non-daemon threads, which may train.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from contextlib import suppress
from math import isclose
from threading import Lock, Thread

from gradwire.launch.store import join_all

FINISH_S = 5.0  # the limit for running work to finish when the interpreter ends, in seconds
BREAK_OFF_S = 5.0  # the limit for threads to end once their connections are closed, in seconds

SWITCH_S = 0.0005
"""The interpreter's switch interval while a communication thread runs, in seconds.

A thread that is busy in Python delays a thread that returns to Python by at most this time. With the default
interval, every bucket would lose 5 ms at its start and 5 ms at its end.
"""

_under_way: dict[Thread, tuple[Callable[[], object], Callable[[], object]]] = {}
"""The running threads, each with its ``finish`` and ``break_off``."""
_usual_switch_s = SWITCH_S
"""The switch interval before the first thread started; it is restored when the last thread has ended."""
_counting = Lock()


def start(
    run: Callable[[], object], name: str, finish: Callable[[], object], break_off: Callable[[], object]
) -> Thread:
    """Start a daemon thread that ends before the interpreter does.

    At its end, the interpreter calls ``finish``, after which ``run`` must complete its work and return. When
    ``run`` has returned, or after ``FINISH_S``, the interpreter calls ``break_off``, which must make every
    wait for a peer fail, in any thread.
    """
    thread = Thread(target=lambda: _watched(run, thread), name=name, daemon=True)
    global _usual_switch_s
    with _counting:
        thread.start()  # first, because it may raise an error; the thread's end needs the lock
        if not _under_way:
            _usual_switch_s = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual_switch_s, SWITCH_S))
        _under_way[thread] = finish, break_off
    atexit.unregister(_end_all)
    atexit.register(_end_all)  # last registered, first called: before the connections are closed
    return thread


def _watched(run: Callable[[], object], thread: Thread) -> None:
    try:
        run()
    finally:
        with _counting:
            del _under_way[thread]
            is_unchanged = isclose(sys.getswitchinterval(), SWITCH_S, abs_tol=2e-6)  # by other code
            if not _under_way and is_unchanged:
                sys.setswitchinterval(_usual_switch_s)


def _end_all() -> None:
    left = [(thread, *calls) for thread, calls in list(_under_way.items()) if thread.is_alive()]
    with suppress(KeyboardInterrupt):  # Ctrl-C ends this wait, and goes on to break_off
        for _, finish, _ in left:
            finish()
        join_all([thread for thread, *_ in left], FINISH_S)
    for _, _, break_off in left:
        break_off()
    join_all([thread for thread, *_ in left], BREAK_OFF_S)
