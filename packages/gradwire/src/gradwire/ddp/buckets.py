"""What DDP says of a bucket, and the future that it waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from time import perf_counter
from typing import Protocol

import torch
import torch.distributed as dist

from gradwire.devices import FLOATS, device_of
from gradwire.errors import ExchangeError, GradwireError, TensorError, copied
from gradwire.exchange import Exchange
from gradwire.exchange.backend import NativeAllReduce
from gradwire.exchange.request import BucketRequest
from gradwire.exchange.views import ParameterViews, views_of
from gradwire.sync.buckets import float_count
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.lost import Layout
from gradwire.sync.ledger.meter import LostMeter
from gradwire.sync.thread import longest_s


class DDPBucket(Protocol):
    """What ``torch.distributed.GradBucket`` says of a bucket."""

    def index(self) -> int:
        """Return its number, from 0 up."""

    def is_last(self) -> bool:
        """Return whether it is the last one of its backward pass."""

    def buffer(self) -> torch.Tensor:
        """Return the gradients, 1-D unless they are sparse."""

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters in the order of their gradients in the buffer."""


Averaged = torch.futures.Future[torch.Tensor]
"""What DDP waits for: torch's own kind of future, of a bucket with its averages."""


def awaited(buffer: torch.Tensor) -> Averaged:
    """Return the future of a bucket.

    That of an accelerator makes DDP's streams wait for the copy back to it, and the host does not.
    """
    averaged: Averaged = device_of(buffer).future()
    return averaged


# Buckets that nothing compresses: the transport averages them without the communication thread, as in DDP.
#
# A thread takes time, of which a fast network leaves none: it wakes up, announces the bucket, waits, and
# wakes the caller. On four hosts that share two cores, a step took a tenth to a fifth longer than DDP's.


class Apart:
    """Averages buckets of lengths that the ranks have exchanged before; all ranks take the same ones.

    The transport's calls need one order on all ranks. So in a round, all of these buckets come before the
    first one that the thread gets, which may let the transport sum, too.

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
    is_open
        Whether ``start`` may take buckets of what is left of a round. Until the thread gets one, it has
        nothing to do, so all ranks know the same lengths.
    """

    def __init__(
        self,
        exchange: Exchange,
        meter: LostMeter,
        begin_timeout_s: float,
        give_up: Callable[[GradwireError], GradwireError],
    ) -> None:
        self._exchange, self._meter, self._give_up = exchange, meter, give_up
        self._request = BucketRequest(timeout_s=begin_timeout_s)
        self.is_open = False

    def start(
        self, bucket: DDPBucket, timeout_s: float, step: int, waits: list[Callable[[], object]]
    ) -> Averaged | None:
        """Return the average of a bucket, for which one of ``waits`` waits; None for one of the thread's.

        ``timeout_s`` is the bucket's, once those before it are averaged.
        """
        buffer = bucket.buffer()
        try:
            own = self._exchange.start(buffer, self._request) if self.is_open else None
        except ExchangeError as error:
            raise self._give_up(error) from error.__cause__
        if own is None:
            return None
        averaged = awaited(buffer)
        waits.append(partial(self._wait, own, timeout_s, f"bucket {bucket.index()}", step, buffer, averaged))
        return averaged

    def _wait(
        self,
        own: NativeAllReduce,
        timeout_s: float,
        name: str,
        step: int,
        buffer: torch.Tensor,
        averaged: Averaged,
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


# Buckets that no codec takes: empty ones, and those of dtypes that torch's own all-reduce averages.


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


# Which parameters lie where in the buckets that DDP cuts, and what exchanges a bucket.


class BucketLayouts:
    """Knows the buckets of one model, whose parameters have ``names``; ``exchange`` exchanges them."""

    def __init__(self, exchange: Exchange, names: Mapping[torch.Tensor, str]) -> None:
        self._exchange, self._names = exchange, names
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._plan = exchange.plan
        self._views: dict[Layout, ParameterViews | None] = {}

    def of(self, bucket: DDPBucket) -> Layout:
        """Return the layout of a bucket."""
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key in self._layouts:
            return self._layouts[key]
        other = f"a parameter of bucket {bucket.index()}"
        names = tuple(self._names.get(each, other) for each in parameters)
        counts = tuple(float_count(each) for each in parameters)
        layout = Layout(names, counts, (frozenset(names),) * len(names))
        if other not in names:  # else nobody keeps it, and another parameter may come to its place
            self._layouts[key] = layout
        return layout

    def views(self, bucket: DDPBucket) -> ParameterViews | None:
        """Return a bucket's parameters with the codecs of the present plan; None if it has one for all."""
        exchange = self._exchange
        if self._plan is not exchange.plan:
            self._plan, self._views = exchange.plan, {}
        layout = self.of(bucket)
        if layout not in self._views:
            self._views[layout] = views_of(self._plan, exchange.link.world, layout.names, layout.counts)
        return self._views[layout]
