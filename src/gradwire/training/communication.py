"""The communication thread of Pipe-SGD (its algorithm 1): gradients in, averaged gradients out, in order."""

from __future__ import annotations

from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread

import torch

from gradwire import collectives
from gradwire.errors import LinkTimeoutError
from gradwire.exchange import Accounting, Exchange

_OWN_WORK_S = 30.0


@dataclass(frozen=True, slots=True)
class Handover:
    """A gradient on its way: the communication thread's until ``result`` is there, averaged in place then."""

    step: int
    gradient: torch.Tensor
    result: Future[Accounting] = field(default_factory=Future)


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
        self._rank = exchange.link.rank
        self._patience_s = patience_s
        self._inbox: SimpleQueue[Handover | None] = SimpleQueue()
        self._thread = Thread(
            target=_communicate,
            args=(exchange, self._inbox),
            name=f"gradwire communication, rank {self._rank}",
            daemon=True,  # a program that ends by an exception must not hang on a dead peer
        )
        self._thread.start()

    def hand_over(self, step: int, gradient: torch.Tensor) -> Handover:
        """Queue ``gradient`` (1-D float32, averaged in place); do not touch it before ``wait`` returns."""
        handover = Handover(step, gradient)
        self._inbox.put(handover)
        return handover

    def wait(self, handover: Handover) -> Accounting:
        """Return once the gradient is averaged. Raises what the exchange raised, or ``LinkTimeoutError``."""
        # Not result(timeout=...): its TimeoutError could not be told from a LinkTimeoutError of the exchange.
        if not wait([handover.result], self._patience_s).done:
            raise LinkTimeoutError(
                f"rank {self._rank} waited {self._patience_s:g} s for the averaged gradient of step "
                f"{handover.step}, but its communication thread is still at work; look for a stopped peer, "
                "or give the link a longer timeout_s"
            )
        return handover.result.result()

    def close(self) -> None:
        """Finish what is queued and join the thread. Raises ``LinkTimeoutError`` if it does not end."""
        self._inbox.put(None)
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            raise LinkTimeoutError(
                f"rank {self._rank}: the communication thread did not end within {self._patience_s:g} s; "
                "close the link to stop it"
            )


def longest_s(exchange: Exchange, count: int) -> float:
    """Return the seconds after which an all-reduce of ``count`` floats must have ended or failed by itself.

    Every frame has the link's timeout, on its way out and on its way in, so a slow network that still moves
    is never taken for a dead one, and a dead one is reported by the exchange long before.
    """
    link, plan = exchange.link, exchange.plan
    steps = sum(1 for _ in collectives.get(plan.algorithm).schedule(link.rank, link.world))
    segments = 1 + 4 * count // plan.segment_nbytes
    return 2 * steps * segments * link.timeout_s + _OWN_WORK_S


def _communicate(exchange: Exchange, inbox: SimpleQueue[Handover | None]) -> None:
    failure: BaseException | None = None
    while (
        handover := inbox.get()
    ) is not None:  # idle without limit: how long a backward pass takes is not known
        if not handover.result.set_running_or_notify_cancel():
            continue
        if failure is None:
            try:
                accounting = exchange.all_reduce(handover.gradient, average=True)
            except BaseException as error:  # it is not lost: the computing thread raises it
                error.add_note(
                    f"while the communication thread averaged the gradient of step {handover.step}"
                )
                failure = error
        if failure is None:
            handover.result.set_result(accounting)
        else:
            handover.result.set_exception(failure)
