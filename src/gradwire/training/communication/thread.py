"""The communication thread of Pipe-SGD (its algorithm 1): gradients in, averaged gradients out, in order.

D-Sync has one, too, when its gradient is cut into buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from time import perf_counter

import torch

from gradwire import collectives
from gradwire.exchange import Accounting, Exchange
from gradwire.training.communication.bucket_thread import BucketThread
from gradwire.training.gradients.reached import set_aside
from gradwire.training.ledger.ledger import Ledger, profiled
from gradwire.training.ledger.lost_meter import Measure
from gradwire.training.ledger.method_meter import MethodMeter

_OWN_WORK_S = 30.0
_ADVICE = "look for a stopped peer, or give the link a longer timeout_s", "close the link to stop it"
WHOLE = "gradient"
"""What a ledger calls the gradient of a step that goes out as one bucket."""


def nothing(_exchange: Exchange) -> Accounting:
    """Do nothing more once a gradient is averaged."""
    return Accounting()


@dataclass(frozen=True, slots=True)
class Handover:
    """A gradient on its way: the communication thread's until ``result`` is there, averaged in place then.

    ``bucket`` is the number, from 1 up, of the part of the step's gradient that it is; 0 for all of it.
    ``residual`` is the thread's as long; gradients that share one are averaged in the order of their steps.
    ``measure`` measures what is lost, where the step is measured. ``waiting`` are the parts of the residual
    that stay out of this step, and ``then`` is done on the thread when the gradient is averaged.
    """

    step: int
    gradient: torch.Tensor
    bucket: int = 0
    residual: torch.Tensor | None = None
    measure: Measure = field(default_factory=Measure)
    waiting: Sequence[torch.Tensor] = ()
    then: Callable[[Exchange], Accounting] = nothing
    result: Future[Accounting] = field(default_factory=Future)
    counted: Lock = field(default_factory=Lock)  # taken by the first wait that a ledger is told of

    @property
    def bucket_name(self) -> str:
        """What a ledger calls it, in every step."""
        return f"bucket {self.bucket}" if self.bucket else WHOLE

    @property
    def name(self) -> str:
        """What errors call it."""
        part = f"bucket {self.bucket} of " if self.bucket else ""
        return f"{part}the gradient of step {self.step}"


class CommunicationThread:
    """One daemon thread that all-reduces what is handed over, one gradient after the other.

    An exception of the exchange reaches whoever waits, as it is, with a note that names the step. The link is
    closed after it, so every later gradient fails with the same exception, and nothing is sent any more.

    Parameters
    ----------
    exchange
        Used by this thread alone while a gradient is under way.
    patience_s
        How long ``wait`` waits at most.
    ledger
        Counts each gradient in the step that first waits for it.
    meter
        Measures what is lost; where it is strict, the thread lets the ranks agree after a step's buckets.
    """

    def __init__(
        self,
        exchange: Exchange,
        patience_s: float,
        ledger: Ledger | None = None,
        meter: MethodMeter | None = None,
    ) -> None:
        self._exchange = exchange
        self._ledger = ledger
        self._meter = meter
        self._patience_s = patience_s
        self._thread = BucketThread(exchange.link.rank, exchange.close, _ADVICE)

    def hand_over(
        self,
        step: int,
        gradient: torch.Tensor,
        bucket: int = 0,
        residual: torch.Tensor | None = None,
        parameters: range | None = None,
        waiting: Sequence[torch.Tensor] = (),
        then: Callable[[Exchange], Accounting] = nothing,
    ) -> Handover:
        """Queue ``gradient`` (1-D float32, averaged in place); do not touch it before ``wait`` returns.

        Nor ``residual``, which ``Exchange.all_reduce`` explains. ``parameters`` are the numbers of those
        whose gradients these are; without them nothing is measured. For the others see ``Handover``.
        """
        measure = Measure()
        if self._meter is not None and parameters is not None:
            measure = self._meter.measure(step, parameters)
        handover = Handover(step, gradient, bucket, residual, measure, waiting, then)
        self._thread.submit(partial(self._average, handover), handover.result)
        return handover

    def check(self) -> None:
        """Raise what has made the exchange useless, if anything has."""
        self._thread.check()

    def give_up(self, failure: BaseException) -> None:
        """Close the link once the gradient under way is done; later ones end with ``failure``."""
        self._thread.give_up(failure)

    def wait(self, handover: Handover) -> Accounting:
        """Return once the gradient is averaged. Raises what the exchange raised, or ``LinkTimeoutError``."""
        started = perf_counter()
        accounting = self._thread.wait(handover.result, self._patience_s, f"{handover.name} to be averaged")
        if handover.counted.acquire(blocking=False):
            exposed_s, nbytes = perf_counter() - started, handover.gradient.nbytes
            if self._meter is not None:
                self._meter.count(handover.bucket_name, accounting, exposed_s, nbytes, handover.measure)
            elif self._ledger is not None:
                self._ledger.exchanged(handover.bucket_name, accounting, exposed_s, gradient_nbytes=nbytes)
        return accounting

    def close(self) -> None:
        """Finish what is queued and join the thread. Raises ``LinkTimeoutError`` if it does not end."""
        self._thread.join(self._patience_s)

    def _average(self, handover: Handover) -> Accounting:
        """Average one gradient; on the thread."""
        with nullcontext() if self._ledger is None else profiled(f"exchange {handover.bucket_name}"):
            try:
                return self._average_and_measure(handover)
            except BaseException as error:
                error.add_note(f"while the communication thread averaged {handover.name}")
                raise

    def _average_and_measure(self, handover: Handover) -> Accounting:
        with set_aside(handover.waiting):
            accounting = self._exchange.all_reduce(
                handover.gradient, average=True, residual=handover.residual, norms=handover.measure.norms
            )
        if self._meter is not None:
            accounting += self._meter.finish(handover.step, handover.measure, self._exchange)
        return accounting + handover.then(self._exchange)


def longest_s(exchange: Exchange, count: int, timeout_s: float | None = None) -> float:
    """Return the seconds after which an all-reduce of ``count`` floats must have ended or failed by itself.

    Every frame has the link's timeout (``timeout_s``, where that is given), on its way out and on its way in,
    so a slow network that still moves is never taken for a dead one, and a dead one is reported by the
    exchange long before.
    """
    link, plan = exchange.link, exchange.plan
    steps = sum(1 for _ in collectives.get(plan.algorithm).schedule(link.rank, link.world))
    segments = 1 + 4 * count // plan.segment_nbytes
    return 2 * steps * segments * (link.timeout_s if timeout_s is None else timeout_s) + _OWN_WORK_S
