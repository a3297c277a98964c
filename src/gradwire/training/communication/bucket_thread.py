"""One thread that works off what it is given, in order, and stops for good at the first failure."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import TIMEOUT_MAX

from gradwire.errors import LinkTimeoutError
from gradwire.exchange import Accounting
from gradwire.training.communication import endings

Work = Callable[[], Accounting]


class BucketThread:
    """Runs the work of one rank's buckets, one after the other, on a thread of its own.

    The first exception closes what all of them use, so that the peers learn of it, and is the outcome of all
    later work, which is not begun. Nor is work whose outcome was cancelled. A program that ends waits a few
    seconds for what is queued (``endings``).

    Parameters
    ----------
    rank
        For the thread's name and for errors.
    close
        Called on the thread after a failure, for a link serves one thread at a time; more than once is
        harmless. A program that ends calls it, too, where the thread does not.
    advice
        What errors tell to do where work takes too long, and where the thread does not end.
    """

    def __init__(self, rank: int, close: Callable[[], None], advice: tuple[str, str]) -> None:
        self.failure: BaseException | None = None
        self._rank = rank
        self._close = close
        self._advice = advice
        self._inbox: SimpleQueue[tuple[Work | None, Future[Accounting]]] = SimpleQueue()
        self._thread = endings.start(self._run, f"gradwire communication, rank {rank}", self.end, close)

    def submit(self, work: Work, outcome: Future[Accounting] | None = None) -> Future[Accounting]:
        """Queue ``work``; what it returns or raises is the future's, which is a new one or ``outcome``."""
        outcome = Future() if outcome is None else outcome
        self._inbox.put((work, outcome))
        return outcome

    def check(self) -> None:
        """Raise what has made all further work useless, if anything has."""
        if self.failure is not None:
            raise self.failure

    def give_up(self, failure: BaseException) -> None:
        """Let everything that has not begun end with ``failure``; the thread closes when it comes to it."""

        def fail() -> Accounting:
            raise failure

        if self.failure is None:
            self.failure = failure
        self.submit(fail)

    def wait(self, outcome: Future[Accounting], patience_s: float, what: str) -> Accounting:
        """Return what the work returned. Raises what it raised, or ``LinkTimeoutError`` naming ``what``."""
        # Not result(timeout=...): its TimeoutError could not be told from a LinkTimeoutError of the work.
        if not wait([outcome], min(patience_s, TIMEOUT_MAX)).done:
            raise LinkTimeoutError(
                f"rank {self._rank} waited {patience_s:g} s for {what}, but its communication thread is "
                f"still at work; {self._advice[0]}"
            )
        return outcome.result()

    def end(self) -> None:
        """Let the thread end once it has done what is queued; return at once. May be called twice."""
        self._inbox.put((None, Future()))

    def join(self, patience_s: float) -> None:
        """End the thread. Raises ``LinkTimeoutError`` if it does not."""
        self.end()
        self._thread.join(min(patience_s, TIMEOUT_MAX))
        if self._thread.is_alive():
            raise LinkTimeoutError(
                f"rank {self._rank}: the communication thread did not end within {patience_s:g} s; "
                f"{self._advice[1]}"
            )

    def _run(self) -> None:
        while True:
            work, outcome = self._inbox.get()  # idle without limit: backward takes what it takes
            if work is None:
                break
            if outcome.set_running_or_notify_cancel():
                self._do(work, outcome)
            del work, outcome  # they hold a bucket

    def _do(self, work: Work, outcome: Future[Accounting]) -> None:
        try:
            self.check()
            accounting = work()
        except BaseException as error:  # it is not lost: whoever waits raises it
            if self.failure is None:
                self.failure = error
            self._close()
            outcome.set_exception(error)
        else:
            outcome.set_result(accounting)
