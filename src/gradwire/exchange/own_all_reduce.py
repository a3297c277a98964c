"""Buckets that the transport sums by its own all-reduce, where a plan asks for that and nothing is encoded.

The transport's messages have no headers, and Gloo ends the process where two ranks disagree about the length
of one. So the first bucket of every length walks the steps of a ring, whose frames are checked; only later
ones of that length go without.
"""

from __future__ import annotations

import time

import torch

from gradwire.codecs import Codec, Identity
from gradwire.collectives import backend
from gradwire.exchange.accounting import Accounting
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

    def run(self, tensor: torch.Tensor) -> Accounting:
        """Sum ``tensor`` over all ranks. The bytes are what a ring sends. Raises ``LinkError``."""
        start = time.perf_counter()
        self._link.all_reduce(tensor)
        spent_s = time.perf_counter() - start
        nbytes = round(backend.nbytes(self._link.world, FLOAT_NBYTES * tensor.numel()))
        return Accounting(nbytes, nbytes, wait_s=spent_s, total_s=spent_s)
