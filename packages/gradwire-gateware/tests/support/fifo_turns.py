"""Queues that are written and read at random."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from typing import Any


async def turns(
    ctx: Any, queues: Sequence[Any], draw: random.Random, comes: float, goes: float
) -> AsyncIterator[tuple[int, bool, bool]]:
    """Yield a word, whether it is written, and whether one is read, in each of 400 cycles.

    All queues get the same. The word is there in cycles in which nothing comes, too.
    """
    for number in range(400):
        writes, reads = draw.random() < comes, draw.random() < goes
        word = number | draw.randrange(8) << 9
        for each in queues:
            ctx.set(each.w_data, word)
            ctx.set(each.w_en, writes)
            ctx.set(each.r_en, reads)
        yield word, writes, reads
        await ctx.tick()
