"""Native all-reduce: the transport sums uncompressed buckets if the plan requests it.

The transport's messages have no headers, and Gloo ends the process if two ranks disagree about a message's
length. So the first bucket of every length uses a ring, whose frames are checked. Before every later bucket
of that length, each rank announces the bucket to the next rank, in a frame without a payload. A rank does not
start if the announced length differs, or if the frame announces a sum and the rank expects an average. So
neighbours in Gloo's ring never start with different buckets.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from gradwire import _native
from gradwire.codecs import Codec, Identity
from gradwire.collectives import backend
from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError, FrameError, LinkError
from gradwire.exchange.frames import Framer
from gradwire.exchange.walk import StreamResources
from gradwire.links.base import Link, Reducing
from gradwire.plan import FLOAT_NBYTES

_COUNTS = 1 << 32
"""The modulus of counts in the frame header."""
_NOTHING = torch.empty(0, dtype=torch.float32, device="cpu")


class NativeAllReduce:
    """One bucket's native all-reduce in flight; ``explain`` returns the reason for a failure as text."""

    def __init__(
        self, reducing: Reducing, tensor: torch.Tensor, ranks: int, explain: Callable[[BaseException], str]
    ) -> None:
        self._reducing, self._tensor, self._ranks, self._explain = reducing, tensor, ranks, explain

    def wait(self, most_s: float) -> ExchangeCost:
        """Wait up to ``most_s`` seconds for the average, which replaces the tensor, and return the cost.

        The cost excludes the time before this call, which overlaps other work. Raises ``ExchangeError``.
        """
        began = time.perf_counter()
        try:
            self._reducing.wait(most_s)
        except (FrameError, LinkError) as error:
            raise ExchangeError(self._explain(error)) from error
        spent_s = time.perf_counter() - began
        finite = _native.finish(self._tensor, self._ranks)
        nbytes = round(backend.nbytes(self._ranks, self._tensor.nbytes))
        return ExchangeCost(
            wait_s=spent_s, raw_nbytes=nbytes, wire_nbytes=nbytes, frames=1, nonfinite=int(not finite)
        )


class NativeReducer:
    """The native all-reduce of a link's transport, for uncompressed buckets."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._agreed: set[int] = set()

    def takes(self, codec: Codec, count: int) -> bool:
        """Return whether the transport sums a bucket of ``count`` values, and record the length.

        The first bucket of each length uses a ring.
        """
        if not isinstance(codec, Identity) or count == 0:
            return False
        known = count in self._agreed
        self._agreed.add(count)
        return known

    @property
    def lengths(self) -> frozenset[int]:
        """The bucket lengths that all ranks have agreed on, the same on all ranks between calls."""
        return frozenset(self._agreed) if self._link.begins_all_reduces else frozenset()

    def run(self, tensor: torch.Tensor, framer: Framer, resources: StreamResources) -> ExchangeCost:
        """Sum ``tensor`` over all ranks. Return the time, and the bytes of a ring and of the announcement."""
        start = time.perf_counter()
        announced_nbytes = self._announce(tensor.numel(), framer, resources)
        self._link.all_reduce(tensor, resources.timeout_s)
        spent_s = time.perf_counter() - start
        nbytes = round(backend.nbytes(self._link.world, FLOAT_NBYTES * tensor.numel()))
        return ExchangeCost(
            wait_s=spent_s, raw_nbytes=nbytes, wire_nbytes=nbytes + announced_nbytes, frames=1
        )

    def _announce(self, count: int, framer: Framer, resources: StreamResources) -> int:
        """Send the next rank a frame that has a count but no values, and return the bytes sent.

        Raises ``FrameError`` unless the previous rank announces the same count.
        """
        link, count = self._link, count % _COUNTS
        flags, timeout_s = resources.flags, resources.timeout_s
        after, before = (link.rank + 1) % link.world, (link.rank - 1) % link.world
        buffer = resources.incoming.take()
        receiving = link.irecv(before, buffer)
        outgoing = framer.encode(_NOTHING, resources.sent.take(after), flags, count)
        sending = link.isend(after, outgoing.frame)
        frame = receiving.wait(timeout_s, keepalive=True)
        try:
            framer.open(frame, count, resources.received.take(before), flags, most_nbytes=0)
        except FrameError as error:
            ranks = f"{link.name_of(link.rank)} receiving from {link.name_of(before)}"
            raise FrameError(f"{ranks}: {error}") from error
        sending.wait(timeout_s, keepalive=True)
        resources.incoming.give(buffer)
        outgoing.home.give(outgoing.buffer)
        return outgoing.frame.numel()


def in_words(error: BaseException) -> str:
    """Return the reason for a native all-reduce's failure, as text."""
    return f"the {backend.NAME} all-reduce: {str(error) or type(error).__name__}"
