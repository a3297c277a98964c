"""The transport's native all-reduce for uncompressed buckets, as in plain DDP; a ring for all other buckets.

Without a codec, gradwire's own frames have no benefit, and on a fast network their cost on the hosts
dominates. A link between processes therefore sums uncompressed buckets with Gloo's all-reduce. Every other
link, and every codec, uses a ring. Links over MPI use a ring, too, because MPI's collectives have no timeout.
Gloo itself uses a ring for large buckets, and the timing models treat ``backend`` as a ring.

Frames don't carry the values, so only TCP's checksums protect the values. Ranks first agree on the length of
a bucket (``exchange.backend``). DDP's buckets, which are the same on all ranks, need no announcement once
their lengths are known.

Card, for ``p`` ranks and a bucket of ``n`` bytes:

- steps: ``2 (p - 1)``
- bytes sent by every rank: ``2 (p - 1) / p n``; received: the same
- extra memory: Gloo's own, two segments of a megabyte at most
- exactness: as in a ring, chunk by chunk, but with different chunk boundaries
- source: Li et al., PyTorch Distributed, VLDB 2020, section 3; Patarasuk and Yuan, JPDC 69 (2009)
"""

from __future__ import annotations

from gradwire.collectives.ring import ROTATES, broadcast, chunks, nbytes, owner, reduce, schedule, steps

__all__ = ["NAME", "ROTATES", "broadcast", "chunks", "nbytes", "owner", "reduce", "schedule", "steps"]

NAME = "backend"
