"""The exchange of one bucket as a work object, on one of three routes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from time import perf_counter

import torch
import torch.distributed as dist

from gradwire.costs import ExchangeCost
from gradwire.devices import Staged, Staging, device_of
from gradwire.errors import ExchangeError, copied
from gradwire.exchange import Exchange
from gradwire.exchange.backend import NativeAllReduce
from gradwire.exchange.on_device import divide
from gradwire.exchange.request import BucketRequest
from gradwire.sync.bucket.error_feedback import NO_FEEDBACK, BucketFeedback
from gradwire.sync.context import SyncContext
from gradwire.sync.layout import Layout
from gradwire.sync.thread import Work, longest_s

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes whose values float32 represents exactly, so that tensors are exchanged as float32."""


class Route(Enum):
    """The route on which a bucket is averaged.

    The transport's calls need the same order on all ranks. So the native buckets of a step precede the first
    bucket on the communication thread, because this thread may also call the transport's all-reduce.
    """

    THREAD = "the exchange, on the communication thread"
    NATIVE = "the transport's own all-reduce, without a thread"
    BYPASS = "torch's own all-reduce, without a codec"


class BucketObserver:
    """The base class of observers of one bucket on the communication thread; its methods do nothing.

    With ``wants_alone``, the same on all ranks, the bucket must run on the communication thread. On the other
    routes, ``before`` and ``after`` are not called.
    """

    wants_alone = False

    def before(self, values: torch.Tensor) -> None:
        """Observe this rank's values, float32, before their exchange and without the residual."""

    def after(self, values: torch.Tensor, exchange: Exchange) -> ExchangeCost:  # noqa: ARG002
        """Observe the exchanged values, and return the cost of the observer's own exchanges."""
        return ExchangeCost()


NULL_BUCKET = BucketObserver()


@dataclass(slots=True, eq=False)
class GradientBucket:
    """One bucket of gradients, passed by a front end to ``GradientSync``."""

    index: int  # in the step, from 0, in the same order on all ranks
    tensor: torch.Tensor  # of any dtype and on any device; changed in place
    is_last: bool = True
    layout: Layout | None = None  # if None: one codec, no measurement, and no residuals by name
    name: str | None = None  # in the ledger, the same in every step; ``bucket <index>`` by default
    # The front end's request, to which residual, norms, timeout, and default views are added.
    request: BucketRequest = field(default_factory=BucketRequest)
    feedback: BucketFeedback | None = None  # by default the residuals of the parameters in ``layout``
    staged: Staged | None = None  # the tensor's copy in host memory, if it is kept from step to step
    observers: Sequence[BucketObserver] = ()  # in addition to the step's
    wants_future: bool = False  # whether the front end calls ``get_future`` of the work


class BucketWork(Work):
    """The exchange of one bucket, on the route that ``GradientSync.start`` chooses."""

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
        self.request, self.step = bucket.request, step  # observers may replace the request
        self.nbytes = 4 * bucket.tensor.numel()
        self.route = Route.THREAD
        self.active: int | None = None  # the number of ranks to average over, if not all
        self.feedback: BucketFeedback = NO_FEEDBACK
        self.observers: list[BucketObserver] = [*bucket.observers]
        self._staged = bucket.staged
        self._native: NativeAllReduce | None = None
        self._bypass: dist.Work | None = None
        self._wants_future = bucket.wants_future
        self._future: torch.futures.Future[torch.Tensor] = device_of(bucket.tensor).future()

    @property
    def is_bypassed(self) -> bool:
        """Whether the bucket bypasses the codecs."""
        return self.route is Route.BYPASS

    def stage(self) -> None:
        """Choose the communication thread's route, and start copying the bucket to the encoding device."""
        self.route = Route.THREAD
        if self._staged is None:
            self._staged = Staged(self.tensor, staging=Staging(self.context.plan.encodes_on_device))

    def start_native(self) -> bool:
        """Start the native all-reduce if the transport supports it; return whether it was started."""
        # A rank may be late for any bucket, so the limit is ``begin_timeout_s``.
        request = replace(self.request, norms=None, timeout_s=self.context.begin_timeout_s)
        self._native = self.context.exchange.start(self.tensor, request)
        if self._native is None:
            return False
        self.route = Route.NATIVE
        return True

    def bypass(self) -> None:
        """Start torch's own all-reduce for a bucket that no codec supports, unless it is empty."""
        self.route, self.name = Route.BYPASS, None
        if self.tensor.numel() == 0:
            self._finish_now()
            return
        group = self.context.group
        ranks = dist.get_world_size(group) if self.active is None else self.active
        work = dist.all_reduce(self.tensor.div_(ranks), group=group, async_op=True)
        self._future = work.get_future().then(lambda future: future.value()[0])
        if self.tensor.device.type == "cpu":  # on an accelerator, the device's stream waits
            self._bypass = work
        else:
            self._result.set_result(None)

    def run(self, exchange: Exchange) -> None:
        """Average the bucket, on the communication thread."""
        assert self._staged is not None
        staged, exchange.link.step = self._staged, self.context.steps_before + self.step
        values = staged.floats()
        with staged.stream.current:
            self.exchange_values(exchange, values)
        self.cost.device_nbytes += staged.crossing_nbytes
        staged.store()
        if self._wants_future:  # else only ``wait`` is called, by a thread that orders the streams itself
            staged.stream.complete(self._future, self.tensor)

    def exchange_values(self, exchange: Exchange, values: torch.Tensor) -> None:
        """Exchange the bucket's floats in place, with error feedback and observers."""
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
        self.feedback.note(values, self.tensor.dtype)
        self.cost = cost

    def wait(self) -> ExchangeCost:
        """Wait for the average and return the cost. A failed bypass or native sum ends the exchange."""
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
        """Return a future of the average, for which an accelerator's streams wait, but not the host."""
        assert self._wants_future, "expected a bucket with wants_future"
        return self._future

    def cancel(self) -> bool:
        """Cancel the work if it has not started, and return whether it was cancelled."""
        is_cancelled = self.route is Route.THREAD and super().cancel()
        if is_cancelled and not self._future.done():
            error = ExchangeError(f"rank {self.context.rank}: {self.what} was cancelled")
            self._future.set_exception(error)  # type: ignore[arg-type]
        return is_cancelled

    def _wait_for_native(self, native: NativeAllReduce) -> None:
        try:
            self.cost = native.wait(longest_s(self.context.exchange, self.nbytes // 4, self.timeout_s))
        except ExchangeError as error:
            self._give_up(error, error.__cause__)
        else:
            self._finish_now()

    def _wait_for_bypass(self, work: dist.Work) -> None:
        try:
            work.wait(timedelta(seconds=self.timeout_s or self.context.timeout_s))
        except RuntimeError as error:
            rank, bucket = f"rank {self.context.rank}", f"bucket {self.index}"
            what = f"{rank}: torch's own all-reduce of {bucket} failed: {error}; look for a failed rank"
            self._give_up(ExchangeError(what), error)
        else:
            self._result.set_result(None)

    def _finish_now(self) -> None:
        self._future.set_result(self.tensor)
        self._result.set_result(None)

    def _give_up(self, error: ExchangeError, cause: BaseException | None) -> None:
        error.__cause__ = cause
        self.context.annotate(error, f"while backward averaged {self.what}")
        self._fail(copied(self.context.fail(error)))  # the error itself would keep the caller's frames

    def _fail(self, error: BaseException) -> None:
        super()._fail(error)
        if not self._future.done():
            failure = error if isinstance(error, Exception) else ExchangeError(repr(error))
            self._future.set_exception(copied(failure))  # type: ignore[arg-type]


def why_bypassed(tensor: torch.Tensor) -> str | None:
    """Return the reason why no codec supports a bucket, in constant wording; None if codecs support it."""
    if tensor.numel() == 0:
        return "it is empty"
    if tensor.dtype not in FLOATS:
        return f"codecs accept {', '.join(map(str, FLOATS))}, but the gradient is {tensor.dtype}"
    return None
