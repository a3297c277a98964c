"""Threads that end before the interpreter does.

While it ends, the interpreter ends every daemon thread that wants to go on in Python. One that comes back
from a kernel or from Gloo then has C++ on its stack, which aborts the process: exit code 134 from a job that
was done, and a launcher starts it again. So what is under way may finish first, within a limit. What does
not, for a peer never comes, ends when its connections are closed, and gets a little more time for that. They
are closed in any case: what the transport does without a thread would hold the process until the peers end.

This happens in ``atexit``, after threads that are no daemons have ended: they may be the ones that train.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from gradwire.launch.within import join_all

FINISH_S = 5.0
"""How long an interpreter that ends waits for what its threads have under way."""
BREAK_OFF_S = 5.0
"""How long it waits then for waits to end whose connections are closed."""

_under_way: dict[Thread, tuple[Callable[[], object], Callable[[], object]]] = {}


def start(
    run: Callable[[], object], name: str, finish: Callable[[], object], break_off: Callable[[], object]
) -> Thread:
    """Start a daemon thread that has ended when the interpreter ends.

    At the interpreter's end ``finish`` is called, which lets ``run`` return once it has done what is under
    way. After that, or where it has not in time, ``break_off`` lets whatever any thread waits for fail.
    """
    thread = Thread(target=lambda: _watched(run, thread), name=name, daemon=True)
    _under_way[thread] = finish, break_off
    atexit.unregister(_end_all)
    atexit.register(_end_all)  # what was registered last comes first: before the connections are closed
    thread.start()
    return thread


def _watched(run: Callable[[], object], thread: Thread) -> None:
    try:
        run()
    finally:
        del _under_way[thread]


def _end_all() -> None:
    left = [(thread, *ways) for thread, ways in list(_under_way.items()) if thread.is_alive()]
    with suppress(KeyboardInterrupt):  # whoever is impatient gets the next stage
        for _, finish, _ in left:
            finish()
        join_all([thread for thread, *_ in left], FINISH_S)
    for _, _, break_off in left:
        break_off()
    join_all([thread for thread, *_ in left], BREAK_OFF_S)
