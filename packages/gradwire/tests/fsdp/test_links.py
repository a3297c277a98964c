from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.exchange import Exchange
from gradwire.fsdp.links import in_ring

WORLD = 4


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
def test_the_member_who_owns_a_shard_is_where_the_ring_leaves_it(
    run_exchanges: Callable[..., list[Any]], world: int
) -> None:
    members = [10 * member for member in range(world)]
    order = in_ring(members)
    assert sorted(order) == members
    shares = torch.arange(3.0 * world * world).reshape(world, 3 * world)

    def reduce(exchange: Exchange) -> tuple[int, torch.Tensor]:
        member = order[exchange.link.rank] // 10
        mine = shares[member].clone()
        exchange.reduce(mine)
        return member, mine.chunk(world)[member]

    for member, shard in run_exchanges(world, reduce):
        assert torch.equal(shard, shares.sum(0).chunk(world)[member])


@pytest.mark.parametrize("world", [2, 3, 5])
def test_a_gather_goes_out_from_the_members_own_shards(
    run_exchanges: Callable[..., list[Any]], world: int
) -> None:
    order = in_ring(range(world))

    def gather(exchange: Exchange) -> torch.Tensor:
        member = order[exchange.link.rank]
        gathered = torch.full((2 * world,), torch.nan)
        gathered.chunk(world)[member].fill_(float(member))
        exchange.broadcast(gathered)
        return gathered

    wanted = torch.arange(float(world)).repeat_interleave(2)
    assert all(torch.equal(gathered, wanted) for gathered in run_exchanges(world, gather))
