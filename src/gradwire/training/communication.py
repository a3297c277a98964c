"""The communication thread of Pipe-SGD (its algorithm 1): gradients in, averaged gradients out, in order.

D-Sync has one, too, when its gradient is cut into buckets.
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from enum import Enum
from queue import SimpleQueue
from threading import Thread

import torch

from gradwire import collectives
from gradwire.errors import LinkTimeoutError
from gradwire.exchange import Accounting, Exchange

_OWN_WORK_S = 30.0


@dataclass(frozen=True, slots=True)
class Handover:
    """A gradient on its way: the communication thread's until ``result`` is there, averaged in place then.

    ``bucket`` is the number, from 1 up, of the part of the step's gradient that it is; 0 for all of it.
    """

    step: int
    gradient: torch.Tensor
    bucket: int = 0
    result: Future[Accounting] = field(default_factory=Future)

    @property
    def name(self) -> str:
        """What errors call it."""
        part = f"bucket {self.bucket} of " if self.bucket else ""
        return f"{part}the gradient of step {self.step}"


class _Order(Enum):
    """What the computing thread wants besides averages."""

    CLOSE_LINK = "close the link"
    END = "end"


class CommunicationThread:
    """One daemon thread that all-reduces what is handed over, one gradient after the other.

    An exception of the exchange reaches whoever waits, as it is, with a note that names the step. The link is
    of no further use after it, so every later gradient fails with the same exception, and nothing is sent any
    more.

    Parameters
    ----------
    exchange
        Used by this thread alone while a gradient is under way.
    patience_s
        How long ``wait`` waits at most.
    """

    def __init__(self, exchange: Exchange, patience_s: float) -> None:
        self._exchange = exchange
        self._rank = exchange.link.rank
        self._patience_s = patience_s
        self._failure: BaseException | None = None
        self._inbox: SimpleQueue[Handover | _Order] = SimpleQueue()
        self._thread = Thread(
            target=self._communicate,
            name=f"gradwire communication, rank {self._rank}",
            daemon=True,  # a program that ends by an exception must not hang on a dead peer
        )
        self._thread.start()

    def hand_over(self, step: int, gradient: torch.Tensor, bucket: int = 0) -> Handover:
        """Queue ``gradient`` (1-D float32, averaged in place); do not touch it before ``wait`` returns."""
        handover = Handover(step, gradient, bucket)
        self._inbox.put(handover)
        return handover

    def check(self) -> None:
        """Raise what has made the exchange useless, if anything has."""
        if self._failure is not None:
            raise self._failure

    def give_up(self, failure: BaseException) -> None:
        """Close the link once the gradient under way is done; later ones end with ``failure``.

        The thread does it, for a link serves one thread at a time.
        """
        if self._failure is None:
            self._failure = failure
        self._inbox.put(_Order.CLOSE_LINK)

    def wait(self, handover: Handover) -> Accounting:
        """Return once the gradient is averaged. Raises what the exchange raised, or ``LinkTimeoutError``."""
        # Not result(timeout=...): its TimeoutError could not be told from a LinkTimeoutError of the exchange.
        if not wait([handover.result], self._patience_s).done:
            raise LinkTimeoutError(
                f"rank {self._rank} waited {self._patience_s:g} s for {handover.name} to be averaged, "
                "but its communication thread is still at work; look for a stopped peer, or give the link a "
                "longer timeout_s"
            )
        return handover.result.result()

    def close(self) -> None:
        """Finish what is queued and join the thread. Raises ``LinkTimeoutError`` if it does not end."""
        self._inbox.put(_Order.END)
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            raise LinkTimeoutError(
                f"rank {self._rank}: the communication thread did not end within {self._patience_s:g} s; "
                "close the link to stop it"
            )

    def _communicate(self) -> None:
        # idle without limit: how long a backward pass takes is not known
        while (item := self._inbox.get()) is not _Order.END:
            if isinstance(item, _Order):
                self._exchange.close()
            elif item.result.set_running_or_notify_cancel():
                self._average(item)

    def _average(self, handover: Handover) -> None:
        try:
            self.check()
            accounting = self._all_reduce(handover)
        except BaseException as error:  # it is not lost: the computing thread raises it
            handover.result.set_exception(error)
        else:
            handover.result.set_result(accounting)

    def _all_reduce(self, handover: Handover) -> Accounting:
        try:
            return self._exchange.all_reduce(handover.gradient, average=True)
        except BaseException as error:
            error.add_note(f"while the communication thread averaged {handover.name}")
            self._failure = error
            raise


def longest_s(exchange: Exchange, count: int) -> float:
    """Return the seconds after which an all-reduce of ``count`` floats must have ended or failed by itself.

    Every frame has the link's timeout, on its way out and on its way in, so a slow network that still moves
    is never taken for a dead one, and a dead one is reported by the exchange long before.
    """
    link, plan = exchange.link, exchange.plan
    steps = sum(1 for _ in collectives.get(plan.algorithm).schedule(link.rank, link.world))
    segments = 1 + 4 * count // plan.segment_nbytes
    return 2 * steps * segments * link.timeout_s + _OWN_WORK_S
