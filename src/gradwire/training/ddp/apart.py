"""Buckets that nothing compresses: the transport averages them without the communication thread, as in DDP.

A thread takes time, of which a fast network leaves none: it wakes up, announces the bucket, waits, and wakes
whoever waits for it. On four hosts that share two cores, a step took a tenth to a fifth longer than DDP's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch

from gradwire.devices import CPU, device_of
from gradwire.errors import ExchangeError, GradwireError, copied
from gradwire.exchange import Exchange
from gradwire.exchange.backend import OwnSum
from gradwire.training.communication.thread import longest_s
from gradwire.training.ddp.grad_bucket import Averaged, DDPBucket, awaited
from gradwire.training.ledger.lost_meter import LostMeter

NO_LENGTHS = frozenset[int]()


class Apart:
    """Averages buckets of lengths that the ranks have exchanged before; all ranks take the same ones.

    The transport's calls need one order on all ranks. So in a round, all of these buckets come before the
    first one that the thread gets, which may let the transport sum, too. There are no lengths any more then.

    Parameters
    ----------
    exchange, meter
        Those of the rounds.
    begin_timeout_s
        How long nothing may move: a rank may come so late to a step, and to each of its buckets.
    give_up
        Lets no later round be any more, and returns the error.

    Attributes
    ----------
    lengths
        Those of the buckets that ``start`` takes for what is left of a round; the same on all ranks, since
        the thread has nothing to do when a round begins.
    """

    def __init__(
        self,
        exchange: Exchange,
        meter: LostMeter,
        begin_timeout_s: float,
        give_up: Callable[[GradwireError], GradwireError],
    ) -> None:
        self._exchange, self._meter, self._give_up = exchange, meter, give_up
        self._begin_timeout_s = begin_timeout_s
        self.lengths = NO_LENGTHS

    def start(
        self, bucket: DDPBucket, timeout_s: float, step: int, waits: list[Callable[[], object]]
    ) -> Averaged | None:
        """Return the average of a bucket, for which one of ``waits`` waits; None for one of the thread's.

        ``timeout_s`` is the bucket's, once those before it are averaged.
        """
        buffer = bucket.buffer()
        if buffer.numel() not in self.lengths or buffer.dtype != torch.float32:
            return None
        if device_of(buffer) is not CPU:
            return None
        try:
            own = self._exchange.begin_apart(buffer, self._begin_timeout_s)
        except ExchangeError as error:
            raise self._give_up(error) from error.__cause__
        averaged = awaited(buffer)
        waits.append(partial(self._wait, own, timeout_s, f"bucket {bucket.index()}", step, buffer, averaged))
        return averaged

    def _wait(
        self, own: OwnSum, timeout_s: float, name: str, step: int, buffer: torch.Tensor, averaged: Averaged
    ) -> None:
        began = perf_counter()
        try:
            accounting = own.wait(longest_s(self._exchange, buffer.numel(), timeout_s))
        except ExchangeError as error:
            error.add_note(f"while backward averaged {name} of step {step}")
            averaged.set_exception(copied(error))  # type: ignore[arg-type]
            raise self._give_up(error) from error.__cause__
        averaged.set_result(buffer)
        self._meter.count(name, accounting, perf_counter() - began, buffer.nbytes)
