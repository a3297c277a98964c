"""The communication thread: one for pipelines, for buckets that overlap backward, and for DDP's hook.

It works off what is handed over, in order, and stops for good at the first failure. Pipe-SGD (its algorithm
1) has one per rank.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import TIMEOUT_MAX, Thread, current_thread

from gradwire.errors import LinkTimeoutError
from gradwire.launch.store import join_all
from gradwire.sync.context import SyncContext
from gradwire.sync.work import CallWork, Work, longest_s

# Threads that end before the interpreter does.
#
# While it ends, the interpreter ends every daemon thread that wants to go on in Python. One that comes back
# from a kernel or from Gloo then has C++ on its stack, which aborts the process: exit code 134 from a job
# that
# was done, and a launcher starts it again. So what is under way may finish first, within a limit. What does
# not, for a peer never comes, ends when its connections are closed, and gets a little more time for that.
# They
# are closed in any case: what the transport does without a thread would hold the process until the peers
# end.
#
# This happens in ``atexit``, after threads that are no daemons have ended: they may be the ones that train.

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


class CommunicationThread:
    """One daemon thread that does the work of one rank's exchanges, one after the other.

    ``Work`` says what becomes of an exception. The context fails with it, so that the peers learn of it, and
    no later work is begun: its outcome is what ``Transport.check`` raises. A program that ends waits a few
    seconds for what is queued (``start``).

    ``context`` is that of the work; its exchange is this thread's alone while work is under way.
    """

    def __init__(self, context: SyncContext) -> None:
        self._context, context.thread = context, self
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        name = f"gradwire communication, rank {context.rank}"
        self._thread = start(self._run, name, self.end, context.exchange.close)

    @property
    def is_current(self) -> bool:
        """Whether this is called on the thread itself."""
        return current_thread() is self._thread

    def put(self, work: Work) -> None:
        """Queue a piece of work."""
        self._inbox.put(work)

    def give_up(self, failure: BaseException) -> None:
        """Close the link once what is under way is done; everything later ends with ``failure``."""
        self._context.exchange.transport.give_up(failure)
        self.put(CallWork(self._context, "the end", lambda _: None, None))

    def end(self) -> None:
        """Let the thread end once it has done what is queued; return at once. May be called twice."""
        self._inbox.put(None)

    def close(self, count: int = 0) -> None:
        """End the thread, which may have ``count`` floats to average, and wait for it.

        Raises ``LinkTimeoutError`` if the thread does not end.
        """
        self.end()
        patience_s = longest_s(self._context.exchange, count)
        self._thread.join(min(patience_s, TIMEOUT_MAX))
        if self._thread.is_alive():
            raise LinkTimeoutError(
                f"rank {self._context.rank}: the communication thread did not end within {patience_s:g} s; "
                "look for a stopped peer, or close the link"
            )

    def _run(self) -> None:
        while (work := self._inbox.get()) is not None:  # without limit: backward takes what it takes
            work.execute()
            del work  # it holds a bucket
