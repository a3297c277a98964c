"""Daemon threads that end before the interpreter does.

At shutdown, the interpreter ends every daemon thread that returns to Python. A thread that returns from a
kernel or from Gloo then has C++ on its stack, which aborts the process. A finished job exits with code 134,
and a launcher restarts it. So running work may finish first, within a limit.

If work does not finish, because a peer is absent, its connections are closed, and it gets a little more time
to end. The connections are closed in any case, because the transport's operations without a thread would
keep the process alive until the peers end. This runs in ``atexit``, after all non-daemon threads have ended,
because they may be training.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from contextlib import suppress
from math import isclose
from threading import Lock, Thread

from gradwire.launch.store import join_all

FINISH_S = 5.0
"""The limit for running work to finish when the interpreter ends, in seconds."""
BREAK_OFF_S = 5.0
"""The limit for waits to end once their connections are closed, in seconds."""

SWITCH_S = 0.0005
"""The longest time for which a thread that is busy in Python delays a thread that returns to Python.

It is the interpreter's switch interval while a communication thread runs; the default is 5 ms, which a bucket
would lose when it starts and when it ends.
"""

_under_way: dict[Thread, tuple[Callable[[], object], Callable[[], object]]] = {}
"""The running threads, each with its ``finish`` and ``break_off``."""
_usual_switch_s = SWITCH_S
"""The switch interval before the first thread started, which returns when the last one has ended."""
_counting = Lock()


def start(
    run: Callable[[], object], name: str, finish: Callable[[], object], break_off: Callable[[], object]
) -> Thread:
    """Start a daemon thread that ends before the interpreter does.

    When the interpreter ends, it calls ``finish``, after which ``run`` must complete its work and return.
    When ``run`` has returned, or after ``FINISH_S``, the interpreter calls ``break_off``, which must make all
    waits of any thread fail.
    """
    thread = Thread(target=lambda: _watched(run, thread), name=name, daemon=True)
    with _counting:
        if not _under_way:
            _shorten_switches()
        _under_way[thread] = finish, break_off
    atexit.unregister(_end_all)
    atexit.register(_end_all)  # last registered, first called: before the connections are closed
    thread.start()
    return thread


def _watched(run: Callable[[], object], thread: Thread) -> None:
    try:
        run()
    finally:
        with _counting:
            del _under_way[thread]
            is_unchanged = isclose(sys.getswitchinterval(), SWITCH_S, abs_tol=2e-6)  # by other callers
            if not _under_way and is_unchanged:
                sys.setswitchinterval(_usual_switch_s)


def _shorten_switches() -> None:
    global _usual_switch_s
    _usual_switch_s = sys.getswitchinterval()
    sys.setswitchinterval(min(_usual_switch_s, SWITCH_S))


def _end_all() -> None:
    left = [(thread, *calls) for thread, calls in list(_under_way.items()) if thread.is_alive()]
    with suppress(KeyboardInterrupt):  # Ctrl-C proceeds to the next stage
        for _, finish, _ in left:
            finish()
        join_all([thread for thread, *_ in left], FINISH_S)
    for _, _, break_off in left:
        break_off()
    join_all([thread for thread, *_ in left], BREAK_OFF_S)
