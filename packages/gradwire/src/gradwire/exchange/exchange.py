"""The exchange: all-reduce, or one half of it, over a link with a plan."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch

from gradwire import collectives
from gradwire.codecs import Codec, Identity
from gradwire.codecs.base import check_chunk
from gradwire.collectives.frame_order import AHEAD, Action, frame_order
from gradwire.costs import ExchangeCost
from gradwire.devices import CPU, Staged, device_of
from gradwire.errors import ExchangeError, FrameError, LinkError, PayloadError, SpecError, copied
from gradwire.exchange.backend import OwnAllReduce, OwnSum, in_words
from gradwire.exchange.feedback import Feedback, Losses, Residual, check_residual
from gradwire.exchange.frames import (
    Buffers,
    Difference,
    Framer,
    Sequences,
    difference,
    incoming_buffers,
    leave,
    overheard,
)
from gradwire.exchange.norms import Norms, check_norms
from gradwire.exchange.on_device import DeviceLosses
from gradwire.exchange.placement import Copies
from gradwire.exchange.walk import Resources, Walk
from gradwire.links.base import Link, Receiving
from gradwire.plan import Plan
from gradwire.wire import AVERAGE, OutOfStepError, flags_of

_HALVES = ("reduce", "broadcast", "schedule")


class Exchange:
    """Exchanges buckets with the other ranks of a link; all ranks call the same methods in the same order.

    A bucket is a 1-D contiguous float32 tensor, of the same length on every rank. It is changed in place. One
    on a device is encoded and decoded there (``on_device``), on the current stream, and has its result when a
    method returns. An exchange serves one thread at a time and refuses a second one.

    A failure closes the link, so that the peers learn of it at once, and leaves the bucket partly summed,
    segment by segment: every frame was added as a whole or not at all. All later calls are refused, with the
    first reason, and so they are after ``give_up`` and ``close``.

    Parameters
    ----------
    link
        This rank's end; whoever made it closes it.
    plan
        The same on all ranks. If NICs are to compress, a link without marked connections is refused with
        ``LinkError``.

    Attributes
    ----------
    failure
        Why the exchange is of no further use, None while it is. The only place that knows.
    difference
        Which ranks are at different training steps, if an exchange has failed for that.
    goes_apart
        Whether the plan leaves buckets to the transport, so that ``begin_apart`` may take some of them.
    """

    def __init__(self, link: Link, plan: Plan) -> None:
        if plan.tos and link.world > 1 and link.tos == 0:
            raise LinkError(
                f"the plan lets NICs do {plan.offload}, but no connections of this {type(link).__name__} "
                f"are marked for them; make a ProcessGroupLink with tos={plan.tos:#x}, or leave out offload"
            )
        self.link = link
        self._incoming = incoming_buffers(link)
        self._transport = OwnAllReduce(link)  # what ranks agreed about once holds for all plans
        self._sent, self._received = Sequences(), Sequences()
        self._adopt(plan)
        self.failure: str | None = None
        self.difference: Difference | None = None
        self._error: BaseException | None = None  # a copy, where others gave up with one
        self._at_work = threading.Lock()

    def _adopt(self, plan: Plan) -> None:
        self.plan = plan
        self._segment_count = plan.segment_nbytes // 4
        self._outgoing: dict[int, Buffers] = {}
        self._framers = {plan.encoding: Framer(plan.encoding, self._segment_count, self._outgoing)}
        self._own = self._transport if OwnAllReduce.serves(self.link, plan) else None
        exact = isinstance(plan.encoding, Identity) and not (plan.codecs or plan.keeps_residual)
        self.goes_apart = exact and self._own is not None
        self._feedback = Feedback()
        self._scratch = torch.empty(0, dtype=torch.float32, device="cpu")

    def follow(self, plan: Plan) -> None:
        """Use another plan from the next call on; all ranks call this between the same two calls.

        Raises ``SpecError`` for a plan that wants other connections.
        """
        if plan.tos != self.plan.tos:
            raise SpecError(
                f"an exchange changes between plans with the same offload, but has {self.plan.offload} and "
                f"got {plan.offload}; make a new link for the other"
            )
        if plan != self.plan:
            self._adopt(plan)

    def all_reduce(
        self,
        tensor: torch.Tensor,
        average: bool = True,
        residual: torch.Tensor | Residual | None = None,
        norms: Norms | None = None,
        timeout_s: float | None = None,
        codec: Codec | None = None,
        copies: Copies | None = None,
    ) -> ExchangeCost:
        """Replace ``tensor`` by the average over all ranks, or their sum; every rank gets identical bits.

        Where the codec bounds the error of every partial sum by ``b``, the sum is within ``world * b`` of the
        exact one.

        Parameters
        ----------
        tensor
            The bucket.
        average
            Whether to divide the sum by the number of ranks.
        residual
            Error feedback (Seide et al., Interspeech 2014): this rank's own, of the same length, in memory of
            its own. It is added to ``tensor`` before anything is sent and then holds what this rank's
            encodings lost, in any hop: the sum plus all ranks' residuals is the exact sum of the tensors and
            the old residuals, within float rounding. Where the sum is not finite, which nobody can use, it
            holds what it held before on all ranks, and so it does after a failure. The owner of a
            ``Residual`` gives the memory for what is lost, too.
        norms
            Gets, by ranges of the bucket, the sums of squares of this rank's own ``tensor``, and of what its
            encodings lost of the sum in any hop. It costs a decoding of what is encoded where no residual is
            kept, and nothing beside a residual.
        timeout_s
            How long nothing may move, on any rank, before that is an error; the link's timeout by default.
        codec
            Encodes this bucket, on all ranks; the plan's by default.
        copies
            Copies the values of ``tensor``, on the host, from where they lie before they are used, and back
            when they are final; not with a residual or norms.

        Raises
        ------
        TensorError
            Before anything is sent or changed.
        ExchangeError
            When a peer fails or disagrees.
        """
        flags = AVERAGE if average else 0
        chosen = self.plan.encoding if codec is None else codec
        return self._run("schedule", tensor, chosen, flags, residual, norms, timeout_s, copies)

    def reduce(
        self,
        tensor: torch.Tensor,
        residual: torch.Tensor | None = None,
        norms: Norms | None = None,
        timeout_s: float | None = None,
    ) -> ExchangeCost:
        """Do the reduce half: ``star`` leaves the sum at rank 0, ``ring`` every chunk at its owner.

        Elsewhere ``tensor`` holds partial sums then. The other arguments are what they are for
        ``all_reduce``; an owner encodes nothing of its chunk, so its residual is 0 there. A rank keeps the
        old one where ``tensor`` is not finite, which others may not see. Raises ``TensorError`` and
        ``ExchangeError``.
        """
        return self._run("reduce", tensor, self.plan.encoding, 0, residual, norms, timeout_s)

    def broadcast(
        self, tensor: torch.Tensor, codec: Codec | None = None, timeout_s: float | None = None
    ) -> ExchangeCost:
        """Do the broadcast half, with a codec of its own where one is given; ``star`` broadcasts from rank 0.

        The owner, too, ends with the decoded values. Raises ``TensorError`` and ``ExchangeError``.
        """
        chosen = self.plan.encoding if codec is None else codec
        return self._run("broadcast", tensor, chosen, timeout_s=timeout_s)

    def __repr__(self) -> str:
        state = "" if self.failure is None else f", over: {self.failure}"
        place = f"rank {self.link.rank} of {self.link.world}"
        return f"<Exchange of {self.plan.encoding} over {self.plan.algorithm}, {place}{state}>"

    def check(self) -> None:
        """Raise a copy of what ``give_up`` got, or ``ExchangeError`` where another failure came first."""
        if self._error is not None:
            raise copied(self._error)
        if self.failure is not None:
            raise ExchangeError(f"this exchange can no longer be used ({self.failure}); make a new one")

    def give_up(self, reason: BaseException | str) -> None:
        """Refuse all later calls, with the first reason; what is under way goes on."""
        if self.failure is None:
            self._error = copied(reason) if isinstance(reason, BaseException) else None
            self.failure = str(reason) or type(reason).__name__

    @property
    def lengths_apart(self) -> frozenset[int]:
        """The lengths of buckets that ``begin_apart`` takes; the same on all ranks between two calls."""
        return self._transport.lengths if self.goes_apart else frozenset()

    def begin_apart(self, tensor: torch.Tensor, timeout_s: float) -> OwnSum:
        """Let the transport average a bucket, 1-D float32 on the host, without this exchange's thread.

        All ranks call it in the same order, between the same two calls of other methods. Raises
        ``ExchangeError``, and leaves it to the caller to give up.
        """
        self.check()
        own = self._transport.begin(tensor.detach(), timeout_s)
        own.in_words = self._in_words
        return own

    def scratch(self, count: int) -> torch.Tensor:
        """Return memory on the host for so many values, the same in each call; for one bucket at a time."""
        if self._scratch.numel() < count:
            with torch.inference_mode(mode=False):  # it is used again outside
                self._scratch = torch.empty(count, dtype=torch.float32, device="cpu")
        return self._scratch[:count]

    def close(self, reason: BaseException | str = "it was closed") -> None:
        """Give up, and close the link, so that the peers learn of it. May be called twice."""
        self.give_up(reason)
        leave(self.link, self.difference)

    def note_difference(
        self, error: BaseException, peer: int | None = None, posted: Iterable[tuple[int, Receiving]] = ()
    ) -> bool:
        """Find out whether ranks are at different steps, after an error; ``close`` tells the peers then."""
        if self.difference is None and isinstance(error, (FrameError, LinkError)):
            self.difference = difference(self.link, error, peer)
        if self.difference is None and isinstance(error, LinkError):
            self.difference = overheard(self.link, posted)
        return self.difference is not None

    def _run(
        self,
        half: str,
        tensor: torch.Tensor,
        codec: Codec,
        flags: int = 0,
        residual: torch.Tensor | Residual | None = None,
        norms: Norms | None = None,
        timeout_s: float | None = None,
        copies: Copies | None = None,
    ) -> ExchangeCost:
        check_chunk(tensor, "tensor", on_cuda=True)
        kept = residual.lost if isinstance(residual, Residual) else residual
        if kept is not None:
            check_residual(kept, tensor)
        if norms is not None:
            check_norms(norms, tensor)
        device = device_of(tensor)
        is_here, is_beside = device is CPU, kept is None or device_of(kept) is device
        if not (is_here or (codec.ON_CUDA and is_beside and self._own is None)):
            return self._run_on_host(half, tensor, codec, flags, residual, norms, timeout_s)
        if not self._at_work.acquire(blocking=False):
            own = self.link.name_of(self.link.rank)
            raise ExchangeError(f"{own}: another thread is using this exchange; it serves one at a time")
        try:
            self.check()
            start = time.perf_counter()
            tensor = tensor.detach()
            losses = self._losses(codec, tensor, residual, norms)
            lent = self._lend(codec, flags, timeout_s)
            if half == "schedule" and self._own is not None and self._own.takes(codec, tensor.numel()):
                return self._sum_by_transport(self._own, tensor, losses, lent, copies)
            way = (self.plan.algorithm, half, self.link.rank, self.link.world)
            order = _frame_order(*way, tensor.numel(), self._segment_count)
            walk = Walk(lent, tensor, order, losses, copies)
            try:
                accounting = walk.run()
            except BaseException as error:
                self._fail(self._describe(half, walk, error), error)
                raise
            accounting.nonfinite = int(not losses.finite)
            accounting.took(time.perf_counter() - start)
            return accounting
        finally:
            self._at_work.release()

    def _losses(
        self,
        codec: Codec,
        tensor: torch.Tensor,
        residual: torch.Tensor | Residual | None,
        norms: Norms | None,
    ) -> Losses:
        """Return who notes what this walk loses."""
        if device_of(tensor) is CPU:
            return self._feedback.of(codec, residual, norms)
        assert not isinstance(residual, Residual), "which is on the host"
        return DeviceLosses(codec, tensor, None if residual is None else residual.detach(), norms)

    def _run_on_host(self, half: str, tensor: torch.Tensor, *way: Any) -> ExchangeCost:
        """Exchange a copy of a bucket that is on a device, where the host alone can do what is asked for."""
        start, staged = time.perf_counter(), Staged(tensor)
        accounting = self._run(half, staged.floats(), *way)
        staged.store().order()
        device_of(tensor).event().wait()
        accounting.device_nbytes += staged.crossing_nbytes
        accounting.took(time.perf_counter() - start)
        return accounting

    def _lend(self, codec: Codec, flags: int, timeout_s: float | None) -> Resources:
        if codec not in self._framers:
            self._framers[codec] = Framer(codec, self._segment_count, self._outgoing)
        framer, patience_s = self._framers[codec], self.link.timeout_s if timeout_s is None else timeout_s
        flags |= flags_of(self.link.step)
        return Resources(self.link, framer, self._incoming, self._sent, self._received, flags, patience_s)

    def _sum_by_transport(
        self,
        own: OwnAllReduce,
        tensor: torch.Tensor,
        losses: Losses,
        lent: Resources,
        copies: Copies | None,
    ) -> ExchangeCost:
        """Let the link sum a bucket that no codec changes."""
        if copies is not None:
            copies.bring(0, tensor.numel())
        losses.begin(tensor)
        try:
            accounting = own.run(tensor, lent)
        except BaseException as error:
            self._fail(self._in_words(error), error)
            raise
        ranks = self.link.world if lent.flags & AVERAGE else 1
        for start in range(0, tensor.numel(), self._segment_count):
            losses.finished(tensor[start : start + self._segment_count], start, ranks)
        losses.commit()
        if copies is not None:
            copies.take_back(0, tensor.numel())
        accounting.nonfinite = int(not losses.finite)
        return accounting

    def _fail(self, failure: str, error: BaseException) -> None:
        """Close the exchange; raise ``ExchangeError`` for what a peer or the network caused."""
        if self.difference is not None and not self.difference.has_left:
            failure = self.difference.in_words(self.link)
        self.close(failure)
        if isinstance(error, (FrameError, LinkError, PayloadError)):
            raise ExchangeError(failure) from error

    def _describe(self, half: str, walk: Walk, error: BaseException) -> str:
        action, peer = walk.action, None if walk.action is None else walk.action.peer
        reason, own = str(error) or type(error).__name__, self.link.name_of(self.link.rank)
        if self.note_difference(error, peer, walk.posted) and self.difference is not None:
            reason = self.difference.in_words(self.link)
        elif isinstance(error, OutOfStepError) and peer is not None:
            reason = f"{self.link.name_of(peer)} has closed its link"
        elif isinstance(error, LinkError) and action is not None:  # it names the ranks
            return f"{self._place(half, action)}: {reason}"
        if action is None:
            return f"{own}, before the first step of the {half}: {reason}"
        way = "receiving from" if action.receives else "sending to"
        return f"{self._place(half, action)}: {own} {way} {self.link.name_of(action.peer)}: {reason}"

    def _in_words(self, error: BaseException) -> str:
        """Return what an exchange that the transport failed says of it."""
        if self.note_difference(error) and self.difference is not None:
            return self.difference.in_words(self.link)
        return in_words(error)

    def _place(self, half: str, action: Action) -> str:
        segment = f"segment {action.segment.index} of chunk {action.segment.chunk}"
        return f"step {action.step} of the {self.plan.algorithm} {half}, {segment}"


@lru_cache(maxsize=256)
def _frame_order(
    algorithm: str, half: str, rank: int, world: int, n: int, segment_count: int
) -> list[Action]:
    chosen = collectives.get(algorithm)
    generators = (chosen.reduce, chosen.broadcast, chosen.schedule)
    steps = dict(zip(_HALVES, generators, strict=True))[half](rank, world)
    return frame_order(steps, n, chosen.chunks(world), segment_count, AHEAD)
