from __future__ import annotations

import pytest
import torch

from gradwire import Exchange, Link, Plan
from gradwire.sync.group import broadcast, gather, mean
from support.ranks import run_ranks


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_rank_learns_all_rows_and_the_text_of_rank_0(world: int) -> None:
    text = "a plan, and a word in Greek: λόγος " * 40

    def talk(link: Link) -> tuple[list[list[float]], str, str]:
        exchange = Exchange(link, Plan.of("fp8", algorithm="star"))
        rows = gather(exchange, [link.rank, 1 / (1 + link.rank), 1e30], 5.0)
        own = text if link.rank == 0 else "nobody hears this"
        return rows, broadcast(exchange, own, 5.0), broadcast(exchange, "", 5.0)

    results = run_ranks(world, talk)
    assert all(result == results[0] for result in results)
    rows, heard, nothing = results[0]
    assert [row[0] for row in rows] == list(range(world))
    assert [row[1] for row in rows] == pytest.approx([1 / (1 + rank) for rank in range(world)], rel=1e-7)
    assert (heard, nothing) == (text, "")


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_rank_learns_the_mean(world: int) -> None:
    def average(link: Link) -> list[float]:
        exchange, values = Exchange(link, Plan.of("quantize:4")), torch.arange(5.0) * link.rank
        mean(exchange, values, 5.0)
        mean(exchange, torch.zeros(0), 5.0)
        return values.tolist()

    means = run_ranks(world, average)
    assert means == [pytest.approx([i * (world - 1) / 2 for i in range(5)], rel=1e-6)] * world
    assert means == [means[0]] * world, "the same bits"
