"""One bucket's exchange as an object, from hand-over to average, on whichever of three routes it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from time import perf_counter

import torch
import torch.distributed as dist

from gradwire.costs import ExchangeCost
from gradwire.devices import FLOATS, Staged, Staging, device_of
from gradwire.errors import ExchangeError, copied
from gradwire.exchange import Exchange
from gradwire.exchange.backend import NativeAllReduce
from gradwire.exchange.on_device import divide
from gradwire.exchange.request import BucketRequest
from gradwire.sync.context import NO_HOST_REDUCTION, HostReduction, SyncContext
from gradwire.sync.error_feedback import NO_FEEDBACK, BucketFeedback
from gradwire.sync.ledger.lost import Layout
from gradwire.sync.thread import Work, longest_s


class Route(Enum):
    """The way in which a bucket is averaged.

    The transport's calls need one order on all ranks. So the native buckets of a step come before the first
    one of the thread, which may let the transport sum, too.
    """

    THREAD = "the exchange, on the communication thread"
    NATIVE = "the transport's own all-reduce, without a thread"
    BYPASS = "torch's own all-reduce, without a codec"


class BucketObserver:
    """Watches one bucket, on the communication thread; does nothing by default.

    Attributes
    ----------
    wants_alone
        Whether the bucket must run on the communication thread; the same on all ranks. On the other routes
        neither method is called.
    """

    wants_alone = False

    def before(self, values: torch.Tensor) -> None:
        """Look at this rank's own values, float32, before their exchange and without a residual."""

    def after(self, values: torch.Tensor, exchange: Exchange) -> ExchangeCost:  # noqa: ARG002
        """Look at the exchanged values; return what exchanges of the observer's own have cost."""
        return ExchangeCost()


NULL_BUCKET = BucketObserver()


@dataclass(slots=True, eq=False)
class GradientBucket:
    """One bucket of gradients, as a front end hands it to ``GradientSync``.

    Attributes
    ----------
    index, is_last
        Its number in the step, from 0 up, in the order of all ranks; whether it is the last one.
    tensor
        The gradients, of any dtype and on any device; changed in place.
    layout
        The parameters in their order in the bucket; None: one codec, nothing measured, no residual by name.
    name
        The ledger's name of it, the same in every step; ``bucket <index>`` by default.
    request
        The request of the front end; residual, norms, timeout, and views by default are added to it.
    feedback
        The residual; by default those of the parameters of ``layout``.
    staged
        The tensor's copy in host memory, where the front end keeps that from step to step.
    observers
        Those of this bucket alone, beside the step's.
    """

    index: int
    tensor: torch.Tensor
    is_last: bool = True
    layout: Layout | None = None
    name: str | None = None
    request: BucketRequest = field(default_factory=BucketRequest)
    feedback: BucketFeedback | None = None
    staged: Staged | None = None
    observers: Sequence[BucketObserver] = ()


class BucketWork(Work):
    """One bucket's exchange, from hand-over to average, on the route that ``GradientSync.start`` chooses.

    Attributes
    ----------
    index, tensor, layout, request
        Those of the bucket; observers may replace the request before it is handed over.
    active
        The number of ranks that the average is over; None: all.
    feedback, observers
        The error feedback, and the observers on the communication thread.
    host, share
        The reduction inside the host, and the tensor that it leaves for the exchange: by default the bucket.
    """

    def __init__(
        self,
        context: SyncContext,
        bucket: GradientBucket,
        step: int,
        count: Callable[[Work, float], None] | None = None,
    ) -> None:
        name = f"bucket {bucket.index}" if bucket.name is None else bucket.name
        super().__init__(context, name, f"{name} of step {step}", done="averaged", count=count)
        self.index, self.tensor, self.layout = bucket.index, bucket.tensor, bucket.layout
        self.request, self.step = bucket.request, step
        self.nbytes = 4 * bucket.tensor.numel()
        self.route = Route.THREAD
        self.active: int | None = None
        self.feedback: BucketFeedback = NO_FEEDBACK
        self.observers: list[BucketObserver] = [*bucket.observers]
        self.host: HostReduction = NO_HOST_REDUCTION
        self.share = bucket.tensor
        self._staged = bucket.staged
        self._native: NativeAllReduce | None = None
        self._bypass: dist.Work | None = None
        self._future: torch.futures.Future[torch.Tensor] = device_of(bucket.tensor).future()

    @property
    def is_bypassed(self) -> bool:
        """Whether no codec takes the bucket."""
        return self.route is Route.BYPASS

    def stage(self) -> None:
        """Take the route of the communication thread: begin to copy the bucket to where it is encoded."""
        self.route = Route.THREAD
        if self._staged is None:
            self._staged = Staged(self.share, staging=Staging(self.context.plan.encodes_on_device))

    def start_native(self) -> bool:
        """Take the native route if the transport can; return whether it does.

        Nothing may move for as long as a rank may come late to a step, because ranks come late to each of
        its buckets. Raises ``ExchangeError``.
        """
        request = replace(self.request, norms=None, timeout_s=self.context.begin_timeout_s)
        self._native = self.context.exchange.start(self.share, request)
        if self._native is None:
            return False
        self.route = Route.NATIVE
        return True

    def bypass(self) -> None:
        """Take torch's own all-reduce, because no codec takes the bucket; an empty one is done at once."""
        self.route, self.name = Route.BYPASS, None
        if self.tensor.numel() == 0:
            self._finish_now()
            return
        group = self.context.group
        ranks = dist.get_world_size(group) if self.active is None else self.active
        work = dist.all_reduce(self.tensor.div_(ranks), group=group, async_op=True)
        self._future = work.get_future().then(lambda future: future.value()[0])
        if self.tensor.device.type == "cpu":  # a device's stream waits by itself
            self._bypass = work
        else:
            self._result.set_result(None)

    def leave(self) -> None:
        """Take no route: the step exchanges nothing, and the bucket stays as it is."""
        self.route, self.name = Route.BYPASS, None
        self._finish_now()

    def run(self, exchange: Exchange) -> None:
        """Average the bucket; on the communication thread."""
        assert self._staged is not None
        staged, exchange.link.step = self._staged, self.context.steps_before + self.step
        values = staged.floats()
        with staged.stream.current:
            self.exchange_values(exchange, values)
        self.cost.device_nbytes += staged.crossing_nbytes
        staged.store()
        self.host.gather(self.share, self.tensor)
        staged.stream.complete(self._future, self.tensor)

    def exchange_values(self, exchange: Exchange, values: torch.Tensor) -> None:
        """Exchange the bucket's floats in place, with residual and observers."""
        residual = self.feedback.lend(values)
        try:
            for each in self.observers:
                each.before(values)
            cost = exchange.run(values, replace(self.request, residual=residual))
            for each in self.observers:
                cost += each.after(values, exchange)
        finally:
            self.feedback.give_back()
        cost.nonfinite = min(cost.nonfinite, 1)
        if self.active is not None:
            divide(values, self.active)
        self.feedback.note(values, self.share.dtype)
        self.cost = cost

    def wait(self) -> ExchangeCost:
        """Return the cost, once the bucket is the average; see ``Work``.

        What fails on another route than the thread's ends the exchange here.
        """
        if self.route is Route.THREAD:
            return super().wait()
        began = perf_counter()
        if not self._result.done():
            if self._native is not None:
                self._wait_for_native(self._native)
            elif self._bypass is not None:
                self._wait_for_bypass(self._bypass)
        return self._outcome(began)

    def get_future(self) -> torch.futures.Future[torch.Tensor]:
        """Return torch's own kind of future of the averaged bucket.

        One of an accelerator makes its streams wait for the copy back to it, and the host does not.
        """
        return self._future

    def cancel(self) -> bool:
        """Drop it if it has not begun; return whether it will not run."""
        is_cancelled = self.route is Route.THREAD and super().cancel()
        if is_cancelled and not self._future.done():
            error = ExchangeError(f"rank {self.context.rank}: {self.what} was cancelled")
            self._future.set_exception(error)  # type: ignore[arg-type]
        return is_cancelled

    def _wait_for_native(self, native: NativeAllReduce) -> None:
        try:
            self.cost = native.wait(longest_s(self.context.exchange, self.nbytes // 4, self.timeout_s))
        except ExchangeError as error:
            error.add_note(f"while backward averaged {self.what}")
            self._give_up(error, error.__cause__)
        else:
            self.host.gather(self.share, self.tensor)
            self._finish_now()

    def _wait_for_bypass(self, work: dist.Work) -> None:
        try:
            work.wait(timedelta(seconds=self.timeout_s or self.context.timeout_s))
        except RuntimeError as error:
            rank, bucket = f"rank {self.context.rank}", f"bucket {self.index}"
            what = f"{rank}: torch's own all-reduce of {bucket} failed: {error}"
            self._give_up(ExchangeError(what), error)
        else:
            self._result.set_result(None)

    def _finish_now(self) -> None:
        self._future.set_result(self.tensor)
        self._result.set_result(None)

    def _give_up(self, error: ExchangeError, cause: BaseException | None) -> None:
        error.__cause__ = cause
        self._fail(copied(self.context.fail(error)))  # a copy, since this would keep frames of the caller

    def _fail(self, error: BaseException) -> None:
        super()._fail(error)
        if not self._future.done():
            failure = error if isinstance(error, Exception) else ExchangeError(repr(error))
            self._future.set_exception(copied(failure))  # type: ignore[arg-type]


def why_bypassed(tensor: torch.Tensor) -> str | None:
    """Return why no codec takes a bucket, in words that stay the same each time; None if codecs do."""
    if tensor.numel() == 0:
        return "it holds nothing"
    if tensor.dtype not in FLOATS:
        return f"codecs take {', '.join(map(str, FLOATS))}, but the gradient is {tensor.dtype}"
    return None
