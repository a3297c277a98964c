"""Buckets that the transport sums by its own all-reduce, where a plan asks for that and nothing is encoded.

The transport's messages have no headers, and Gloo ends the process where two ranks disagree about the length
of one. So the first bucket of every length walks the steps of a ring, whose frames are checked. Before a
later one of that length every rank announces it to the next, in a frame without a payload. Whoever hears of
another length, or of a sum instead of an average, does not begin. So no two neighbours of Gloo's ring begin
with different buckets.
"""

from __future__ import annotations

import time

import torch

from gradwire.codecs import Codec, Identity
from gradwire.collectives import backend
from gradwire.errors import FrameError
from gradwire.exchange.accounting import Accounting
from gradwire.exchange.walk import Resources
from gradwire.links.base import Link
from gradwire.plan import FLOAT_NBYTES, Plan


class OwnAllReduce:
    """What a link's own all-reduce takes over from an exchange with ``plan``."""

    def __init__(self, link: Link, plan: Plan) -> None:
        self._link = link
        self._wanted = plan.algorithm == backend.NAME and link.HAS_ALL_REDUCE
        self._walked: set[int] = set()

    def takes(self, codec: Codec, count: int) -> bool:
        """Return whether a bucket of so many values need not walk; the first of any length has to."""
        if not self._wanted or not isinstance(codec, Identity) or self._link.world == 1 or count == 0:
            return False
        known = count in self._walked
        self._walked.add(count)
        return known

    def run(self, tensor: torch.Tensor, own: Resources) -> Accounting:
        """Sum ``tensor`` over all ranks; the bytes are what a ring sends, and the announcement.

        ``own`` is what a walk would get. Raises ``FrameError`` and ``LinkError``.
        """
        start = time.perf_counter()
        announced_nbytes = self._announce(tensor.numel(), own)
        self._link.all_reduce(tensor)
        spent_s = time.perf_counter() - start
        nbytes = round(backend.nbytes(self._link.world, FLOAT_NBYTES * tensor.numel()))
        return Accounting(nbytes, nbytes + announced_nbytes, frames=1, wait_s=spent_s, total_s=spent_s)

    def _announce(self, count: int, own: Resources) -> int:
        """Tell the next rank what comes, and hear it of the one before; return the bytes sent."""
        rank, world = self._link.rank, self._link.world
        after, before = (rank + 1) % world, (rank - 1) % world
        buffer = own.incoming.take()
        receiving = self._link.irecv(before, buffer)
        outgoing = own.framer.announce(count, own.sent.take(after), own.flags)
        sending = self._link.isend(after, outgoing.frame)
        frame, sequence = receiving.wait(), own.received.take(before)
        try:
            own.framer.check_announced(frame, count, sequence, own.flags)
        except FrameError as error:
            raise FrameError(f"rank {rank} receiving from rank {before}: {error}") from error
        sending.wait()
        own.incoming.give(buffer)
        outgoing.home.give(outgoing.buffer)
        return outgoing.frame.numel()
