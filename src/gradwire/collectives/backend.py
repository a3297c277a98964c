"""The transport's own all-reduce for buckets that are not compressed, as plain DDP uses it; else a ring.

Where nothing is encoded, the steps of an exchange only cost: on a fast network what a frame costs the hosts
is most of the time. A link between processes sums uncompressed buckets by Gloo's all-reduce; every other link
(that over MPI, too, whose collectives know no timeout), and every codec, walks a ring, which is what Gloo
does itself for large buckets and what models take it for.

No values travel in frames then, and there are no checksums beside TCP's own. A frame without a payload tells
the next rank of every bucket, since Gloo ends the process where two ranks disagree about a length.

Card, for ``p`` ranks and a bucket of ``n`` bytes:

- steps: ``2 (p - 1)``
- bytes sent by every rank: ``2 (p - 1) / p n``; received: as many
- extra memory: Gloo's own, two segments of a megabyte at most
- exactness: as in a ring, chunk by chunk, though Gloo cuts the bucket at other places
- source: Li et al., PyTorch Distributed, VLDB 2020, section 3; Patarasuk and Yuan, JPDC 69 (2009)
"""

from __future__ import annotations

from gradwire.collectives.ring import ROTATES, broadcast, chunks, nbytes, owner, reduce, schedule, steps

__all__ = ["NAME", "ROTATES", "broadcast", "chunks", "nbytes", "owner", "reduce", "schedule", "steps"]

NAME = "backend"
