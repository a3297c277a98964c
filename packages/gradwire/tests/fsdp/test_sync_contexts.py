from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from gradwire import Ledger, Plan, loopback
from gradwire.codecs import Identity
from gradwire.errors import ExchangeError
from gradwire.exchange import Exchange
from gradwire.fsdp import sync_contexts
from gradwire.fsdp.sync_contexts import Purpose, SyncContexts, in_ring
from gradwire.sync.context import SyncOptions

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


def test_an_error_on_one_link_ends_all_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_contexts, "connect", lambda *_: loopback(1)[0])
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: [0])
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    every = SyncContexts(Plan.of("fp8"), Identity(), SyncOptions(), Ledger(0))
    group = cast(dist.ProcessGroup, None)
    for purpose in (Purpose.GATHER, Purpose.SCATTER):
        every.connect(purpose, group)
    gathering = every.using(Purpose.GATHER, group, "0.weights")
    with pytest.raises(ExchangeError, match=r"(?m)^gone$") as caught, gathering:
        raise ExchangeError("gone")
    remedy = "save model.state_dict(), which contains the shards, and restart all ranks"
    assert caught.value.__notes__ == [f"in the all-gather of the weights (0.weights); {remedy}"]
    reason = rf"^rank 0: this model's exchange failed earlier \(gone\), .*; {re.escape(remedy)}$"
    with pytest.raises(ExchangeError, match=reason), every.using(Purpose.SCATTER, group, "0.gradients"):
        pytest.fail("no link is lent any more")
    every.close()
    with pytest.raises(ExchangeError, match=reason), every.using(Purpose.GATHER, group, "0.weights"):
        pytest.fail("the first reason counts")
