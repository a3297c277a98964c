"""Buckets that no codec takes: empty ones, and those of dtypes that torch's own all-reduce averages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from gradwire.devices import FLOATS
from gradwire.errors import ExchangeError, GradwireError, TensorError
from gradwire.training.ddp.grad_bucket import Averaged, DDPBucket, awaited
from gradwire.training.ledger.ledger import Ledger


class Bypasses:
    """Averages the buckets that go around the exchange of one model, and counts them.

    ``give_up`` ends the model's exchange with an error and returns it.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        rank: int,
        ledger: Ledger,
        give_up: Callable[[GradwireError], GradwireError],
    ) -> None:
        self._group, self._rank, self._ledger, self._give_up = group, rank, ledger, give_up

    def average(
        self, bucket: DDPBucket, active: int | None, timeout_s: float, waits: list[Callable[[], object]]
    ) -> Averaged | None:
        """Return the average of a bucket that no codec takes; None for one that the exchange takes.

        It is over ``active`` ranks, or all where that is None. One of ``waits`` waits for it on the host, at
        most ``timeout_s``. Raises ``TensorError`` for sparse gradients.
        """
        name, buffer = f"bucket {bucket.index()}", bucket.buffer()
        if buffer.layout != torch.strided:
            raise self._give_up(
                TensorError(
                    f"rank {self._rank}: {name} holds sparse gradients, which gradwire does not exchange; "
                    "make its embedding with sparse=False"
                )
            )
        if buffer.numel() == 0:
            self._ledger.bypassed("it holds nothing", name, 0)
            at_once = awaited(buffer)
            at_once.set_result(buffer)
            return at_once
        if buffer.dtype in FLOATS:
            return None
        reason = f"codecs take {', '.join(map(str, FLOATS))}, but the gradient is {buffer.dtype}"
        self._ledger.bypassed(reason, name, buffer.nbytes)
        world = active or dist.get_world_size(self._group)
        work = dist.all_reduce(buffer.div_(world), group=self._group, async_op=True)
        if buffer.device.type == "cpu":
            waits.append(partial(self._wait, name, work, timeout_s))
        averaged: Averaged = work.get_future().then(lambda future: future.value()[0])
        return averaged

    def _wait(self, name: str, work: dist.Work, timeout_s: float) -> None:
        try:
            work.wait(timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise self._give_up(
                ExchangeError(f"rank {self._rank}: torch's own all-reduce of {name} failed: {error}")
            ) from error
