"""The exchange: an all-reduce, or one half of it, over a link with a plan."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from gradwire import collectives
from gradwire.codecs import Codec, Identity
from gradwire.codecs.base import check_chunk
from gradwire.collectives import backend
from gradwire.collectives.frame_order import AHEAD, Action, frame_order
from gradwire.costs import ExchangeCost
from gradwire.devices import CPU, Staged, device_of
from gradwire.errors import ExchangeError, FrameError, LinkError, PayloadError, SpecError
from gradwire.exchange.backend import NativeAllReduce, NativeReducer, in_words
from gradwire.exchange.engine import EngineRun, NativeOrder, forget_engine, lend, native_order, reclaim
from gradwire.exchange.feedback import FeedbackFactory, Residual, commit_all, waiting
from gradwire.exchange.frames import Buffers, Framer, Transport, incoming_buffers
from gradwire.exchange.norms import Norms
from gradwire.exchange.on_device import DeviceFeedback
from gradwire.exchange.request import BucketRequest, CodecValues, Half, check_values, check_views
from gradwire.exchange.views import CodecPart
from gradwire.exchange.walk import RunPart, ScheduleRun, StreamResources
from gradwire.links.base import Link
from gradwire.plan import Plan
from gradwire.wire import AVERAGE, OutOfStepError, Sequences, flags_of


class Exchange:
    """An exchange of buckets among a link's ranks; all ranks call the same methods in the same order.

    A bucket is a 1-D contiguous float32 tensor, of the same length on every rank, changed in place. A bucket
    on a device is encoded and decoded there (``on_device``), on the current stream, and is complete
    when a method returns. An exchange serves one thread at a time and refuses a second thread.

    A failure closes the link, which notifies the peers. The bucket is then partly summed and averaged, but
    every received frame was added as a whole or not at all. All later calls raise an error with the first
    reason, as they do after ``close``.

    Parameters
    ----------
    link
        This rank's link, which the link's creator closes.
    plan
        The plan, the same on all ranks. With ``offload``, the link's connections must be marked, unless the
        link has none (``tos`` is None); otherwise, the constructor raises ``LinkError``.

    Attributes
    ----------
    transport
        The first failure, shared by the threads that use this exchange. Another exchange over the same link
        has its own, although each failure closes the link for both.
    starts
        Whether the plan uses the native all-reduce, so that ``start`` may start it for some buckets.
    """

    def __init__(self, link: Link, plan: Plan) -> None:
        if plan.tos and link.world > 1 and link.tos == 0:
            raise LinkError(
                f"expected connections marked for offload {plan.offload}, got a {type(link).__name__} with "
                f"unmarked connections; create a ProcessGroupLink with tos={plan.tos:#x}, or omit offload"
            )
        self.link, self.transport = link, Transport(link)
        self._incoming = incoming_buffers(link)
        self._native = NativeReducer(link)  # the agreed lengths are valid for all plans
        self._sent, self._received = Sequences(), Sequences()
        link.count(self._received)
        self._adopt(plan)
        self._at_work = threading.Lock()

    def _adopt(self, plan: Plan) -> None:
        self.plan = plan
        self._segment_count = plan.segment_nbytes // 4
        self._outgoing: dict[int, Buffers] = {}
        self._framers = {plan.encoding: Framer(plan.encoding, self._segment_count, self._outgoing)}
        has_native = self.link.HAS_ALL_REDUCE and self.link.world > 1
        self._reducer = self._native if plan.algorithm == backend.NAME and has_native else None
        exact = isinstance(plan.encoding, Identity) and not (plan.codecs or plan.keeps_residual)
        self.starts = exact and self._reducer is not None
        self._feedback = FeedbackFactory()
        self._memory = torch.empty(0, dtype=torch.float32, device="cpu")

    @property
    def failure(self) -> str | None:
        """The reason why the exchange is unusable; None while it can be used."""
        return self.transport.failure

    def follow(self, plan: Plan) -> None:
        """Switch to a different plan; all ranks call this between the same two exchanges.

        Raises ``SpecError`` for a plan that needs other connections.
        """
        if plan.tos != self.plan.tos:
            raise SpecError(
                f"expected a plan with offload {self.plan.offload}, like this exchange's link, got "
                f"{plan.offload}; create a link with tos={plan.tos:#x}"
            )
        if plan != self.plan:
            self._adopt(plan)
            forget_engine(self.link)

    def all_reduce(
        self,
        tensor: torch.Tensor,
        average: bool = True,
        residual: torch.Tensor | Residual | None = None,
        norms: Norms | None = None,
        timeout_s: float | None = None,
        codec: Codec | None = None,
    ) -> ExchangeCost:
        """Replace ``tensor`` with the average, or the sum, over all ranks, with identical bits on every rank.

        If the codec bounds the error of every partial sum by ``b``, the sum is within ``world * b`` of the
        exact sum. ``BucketRequest`` describes the other arguments. Raises ``TensorError`` before anything is
        sent or changed, and ``ExchangeError`` if a peer fails or makes a different call.
        """
        request = BucketRequest(Half.ALL_REDUCE, average, codec, None, residual, norms, timeout_s)
        return self.run(tensor, request)

    def reduce(
        self,
        tensor: torch.Tensor,
        residual: torch.Tensor | None = None,
        norms: Norms | None = None,
        timeout_s: float | None = None,
    ) -> ExchangeCost:
        """Run the reduce half, after which rank 0 (``star``) or each chunk's owner (``ring``) has the sum.

        All other values of ``tensor`` are partial sums. An owner doesn't encode its chunk, so the owner's
        residual is 0 in this chunk. ``BucketRequest`` describes the arguments. Raises ``TensorError`` and
        ``ExchangeError``.
        """
        request = BucketRequest(Half.REDUCE, residual=residual, norms=norms, timeout_s=timeout_s)
        return self.run(tensor, request)

    def broadcast(
        self, tensor: torch.Tensor, codec: Codec | None = None, timeout_s: float | None = None
    ) -> ExchangeCost:
        """Run the broadcast half, with ``codec`` instead of the plan's codec; ``star`` sends from rank 0.

        The sender also adopts the decoded values. Raises ``TensorError`` and ``ExchangeError``.
        """
        return self.run(tensor, BucketRequest(Half.BROADCAST, codec=codec, timeout_s=timeout_s))

    def run(self, tensor: torch.Tensor, request: BucketRequest) -> ExchangeCost:
        """Exchange one bucket in place, and return the cost.

        The parameters in ``request.views`` are sent in frames of their codecs, in one run: each step of the
        schedule moves one chunk of every codec's values. Raises ``TensorError`` before anything is sent or
        changed, and ``ExchangeError`` if a peer fails or makes a different call.
        """
        check_chunk(tensor, "tensor", on_cuda=True)
        if request.views is None:
            codec = self.plan.encoding if request.codec is None else request.codec
            return self._run([CodecValues(codec, tensor, request.residual, request.norms)], request)
        self.transport.check()
        check_views(tensor, request, request.views)
        parts, total, residual = request.views.parts, ExchangeCost(), request.residual
        is_together = parts and self._reducer is None  # the transport sums one tensor at a time
        if isinstance(residual, torch.Tensor) and not is_together and len(parts) > 1:
            with waiting(residual, request.views.counts) as kept:
                return self.run(tensor, replace(request, residual=kept))
        if isinstance(residual, Residual):
            residual.replaced = residual.finite = True
        try:
            for group in [parts] if is_together else [[part] for part in parts]:
                total += self._run_parts(tensor, request, group)
        except BaseException:
            if isinstance(residual, Residual):
                residual.replaced = False
            raise
        total.nonfinite = min(total.nonfinite, 1)
        return total

    def start(self, tensor: torch.Tensor, request: BucketRequest) -> NativeAllReduce | None:
        """Start the native all-reduce of a bucket; return None if the caller must ``run`` the request.

        The native all-reduce supports exact averages of float32 on the host, of lengths that all ranks have
        exchanged before, and needs no communication thread. All ranks call ``start`` in the same order,
        between the same two calls of other methods. Raises ``ExchangeError``, after which the caller closes
        the exchange.
        """
        self.transport.check()
        extras = request.codec, request.views, request.residual, request.norms
        is_average = request.half is Half.ALL_REDUCE and request.average
        if not (self.starts and is_average and all(each is None for each in extras)):
            return None
        is_here = tensor.dtype == torch.float32 and device_of(tensor) is CPU
        if not is_here or tensor.numel() not in self._native.lengths:
            return None
        timeout_s = self.link.timeout_s if request.timeout_s is None else request.timeout_s
        try:
            reducing = self.link.begin_all_reduce(tensor.detach(), timeout_s)
        except LinkError as error:
            raise ExchangeError(in_words(error)) from error
        return NativeAllReduce(reducing, tensor.detach(), self.link.world, self._reason)

    def close(self, reason: BaseException | str = "it was closed") -> None:
        """Refuse all later calls and close the link, which notifies the peers; may be called twice."""
        self.transport.close(reason)

    def __repr__(self) -> str:
        state = "" if self.failure is None else f", failed: {self.failure}"
        place = f"rank {self.link.rank} of {self.link.world}"
        return f"<Exchange of {self.plan.encoding} over {self.plan.algorithm}, {place}{state}>"

    def _scratch(self, count: int) -> torch.Tensor:
        """Return reusable host memory for ``count`` values of one bucket at a time."""
        if self._memory.numel() < count:
            with torch.inference_mode(mode=False):  # because calls outside of inference mode reuse it
                self._memory = torch.empty(count, dtype=torch.float32, device="cpu")
        return self._memory[:count]

    def _run_parts(
        self, tensor: torch.Tensor, request: BucketRequest, parts: Sequence[CodecPart]
    ) -> ExchangeCost:
        """Exchange several codecs' parameters in one run, and copy them by segment if possible."""
        has_extras = request.residual is not None or request.norms is not None
        if request.half is Half.ALL_REDUCE and not has_extras and device_of(tensor) is CPU:
            counts = [0 if part.is_in_place else part.borders[-1] for part in parts]
            memory = torch.split(self._scratch(sum(counts)), counts)
            pairs = zip(parts, memory, strict=True)
            return self._run([CodecValues.copied(tensor, part, own) for part, own in pairs], request)
        values = [CodecValues.joined(tensor, request, part) for part in parts]
        cost = self._run(values, request)
        for part, own in zip(parts, values, strict=True):
            part.put(tensor, own.tensor)
            part.put_residual(request.residual, own.residual)
            if request.norms is not None and own.ranges is not None:
                request.norms.sums[:, list(part.numbers)] = own.ranges.sums
        return cost

    def _run(self, parts: Sequence[CodecValues], request: BucketRequest) -> ExchangeCost:
        """Exchange the values of each codec, together."""
        for each in parts:
            check_values(each.tensor, each.residual, each.norms)
        away = [each for each in parts if not each.is_here]
        if away and (self._reducer or len(away) < len(parts) or any(each.needs_host for each in away)):
            return self._run_on_host(parts, request)
        if not self._at_work.acquire(blocking=False):
            own = self.link.name_of(self.link.rank)
            raise ExchangeError(f"{own}: another thread is using this exchange; call it from one thread only")
        try:
            self.transport.check()
            start = time.perf_counter()
            lent, resources = self._lend(parts), self._resources(request)
            reducer = self._reducer if request.half is Half.ALL_REDUCE else None
            if reducer is not None and reducer.takes(parts[0].codec, parts[0].tensor.numel()):
                return self._sum_by_transport(reducer, lent[0], resources)
            run = None
            try:
                run = self._scheduled(resources, lent, request.half)
                accounting = run.run()
            except BaseException as error:
                reclaim(self.link)
                if run is None:  # nothing was sent
                    raise
                self._fail(self._describe(request.half, run, error), error)
                raise
            accounting.nonfinite = int(not all(part.feedback.finite for part in lent))
            accounting.took(time.perf_counter() - start)
            return accounting
        finally:
            self._at_work.release()

    def _scheduled(
        self, resources: StreamResources, parts: Sequence[RunPart], half: Half
    ) -> ScheduleRun | EngineRun:
        """Return the run of a bucket: by the native engine if it serves the link."""
        place = self.plan.algorithm, half, self.link.rank, self.link.world
        counts = tuple(part.tensor.numel() for part in parts)
        order = _native_order(*place, counts, self._segment_count)
        connections = lend(self.link, (part.framer.codec for part in parts))
        if connections is None:
            return ScheduleRun(resources, parts, order.actions)
        return EngineRun(resources, connections, parts, order)

    def _lend(self, values: Sequence[CodecValues]) -> list[RunPart]:
        """Return the parts of one run, with the exchange's framers and memory for error feedback."""
        parts, start = list[RunPart](), 0
        for each in values:
            if each.codec not in self._framers:
                self._framers[each.codec] = Framer(each.codec, self._segment_count, self._outgoing)
            tensor = each.tensor.detach()
            if each.is_here:
                feedback = self._feedback.of(each.codec, each.residual, each.norms, start)
            else:
                assert not isinstance(each.residual, Residual), "a Residual is on the host"
                residual = None if each.residual is None else each.residual.detach()
                feedback = DeviceFeedback(each.codec, tensor, residual, each.norms)
                if parts:
                    feedback.share_status(parts[0].feedback)
            parts.append(RunPart(tensor, self._framers[each.codec], feedback, each.copies, each.filled))
            start += tensor.numel()
        return parts

    def _run_on_host(self, parts: Sequence[CodecValues], request: BucketRequest) -> ExchangeCost:
        """Exchange host copies of values and residuals on a device, for a request that needs the host."""
        start, staged, moved = time.perf_counter(), list[Staged](), list[CodecValues]()
        for each in parts:
            staged.append(copy := Staged(each.tensor))
            residual = each.residual
            if isinstance(residual, torch.Tensor):  # a residual on the host is used in place
                staged.append(kept := Staged(residual))
                residual = kept.floats()
            moved.append(replace(each, tensor=copy.floats(), residual=residual))
        accounting = self._run(moved, request)
        for copy in staged:
            copy.store().order()
            accounting.device_nbytes += copy.crossing_nbytes
        for device in {device_of(each.tensor) for each in parts}:
            device.event().wait()
        accounting.took(time.perf_counter() - start)
        return accounting

    def _resources(self, request: BucketRequest) -> StreamResources:
        """Return the exchange's resources for one run."""
        flags = flags_of(self.link.step)
        if request.average and request.half is Half.ALL_REDUCE:
            flags |= AVERAGE
        timeout_s = self.link.timeout_s if request.timeout_s is None else request.timeout_s
        buffers = self._incoming, self._sent, self._received
        return StreamResources(self.link, *buffers, flags, timeout_s)

    def _sum_by_transport(
        self, reducer: NativeReducer, part: RunPart, resources: StreamResources
    ) -> ExchangeCost:
        """Sum an uncompressed bucket by the transport's native all-reduce."""
        tensor, feedback, copies = part.tensor, part.feedback, part.copies
        if copies is not None:
            copies.load(0, tensor.numel())
        feedback.begin(tensor)
        try:
            accounting = reducer.run(tensor, part.framer, resources)
        except BaseException as error:
            self._fail(self._reason(error), error)
            raise
        ranks = self.link.world if resources.flags & AVERAGE else 1
        for start in range(0, tensor.numel(), self._segment_count):
            feedback.finished(tensor[start : start + self._segment_count], start, ranks)
        commit_all([feedback])
        if copies is not None:
            copies.store(0, tensor.numel())
        accounting.nonfinite = int(not feedback.finite)
        accounting.raw_nbytes *= part.filled
        return accounting

    def _fail(self, failure: str, error: BaseException) -> None:
        """Close the exchange; raise ``ExchangeError`` if a peer or the network caused the failure."""
        difference = self.transport.difference
        if difference is not None and not difference.has_left:
            failure = difference.in_words(self.link)
        self.close(failure)
        if isinstance(error, (FrameError, LinkError, PayloadError)):
            raise ExchangeError(failure) from error

    def _describe(self, half: Half, run: ScheduleRun | EngineRun, error: BaseException) -> str:
        action, peer = run.action, None if run.action is None else run.action.peer
        reason, own = str(error) or type(error).__name__, self.link.name_of(self.link.rank)
        difference = self.transport.note_difference(error, peer, run.posted)
        if difference is not None:
            reason = difference.in_words(self.link)
        elif isinstance(error, OutOfStepError) and peer is not None:
            reason = f"{self.link.name_of(peer)} has closed its link"
        elif isinstance(error, LinkError) and action is not None:  # the error names the ranks
            return f"{self._place(half, action)}: {reason}"
        if action is None:
            return f"{own}, before the first step of the {half.value}: {reason}"
        doing = "receiving from" if action.receives else "sending to"
        return f"{self._place(half, action)}: {own} {doing} {self.link.name_of(action.peer)}: {reason}"

    def _reason(self, error: BaseException) -> str:
        """Return the reason why a native all-reduce has failed, as text."""
        difference = self.transport.note_difference(error)
        return in_words(error) if difference is None else difference.in_words(self.link)

    def _place(self, half: Half, action: Action) -> str:
        segment = f"segment {action.segment.index} of chunk {action.segment.chunk}"
        return f"step {action.step} of the {self.plan.algorithm} {half.value}, {segment}"


@lru_cache(maxsize=256)
def _native_order(
    algorithm: str, half: Half, rank: int, world: int, counts: tuple[int, ...], segment_count: int
) -> NativeOrder:
    chosen = collectives.get(algorithm)
    steps = getattr(chosen, half.value)(rank, world)
    actions = frame_order(steps, counts, chosen.chunks(world), segment_count, AHEAD)
    return native_order(actions, len(counts), segment_count)
