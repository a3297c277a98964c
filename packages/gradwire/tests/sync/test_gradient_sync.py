"""Calls of all ranks between two steps, and the routes of buckets; the oracle is the exact average."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.ddp.checks import named_barrier
from gradwire.errors import ExchangeError, StateError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.replicas.compare import compare_now, crc32c_of, replica_hashes
from support.fake_buckets import sync_over

Ranks = Callable[..., list[Any]]


def _with(exchange: Exchange, call: Callable[[GradientSync], Any]) -> Any:
    sync = sync_over(exchange, begin_timeout_s=5.0)
    sync.context.steps_done = 2
    try:
        return call(sync)
    finally:
        sync.close()


def test_all_ranks_get_the_answer_of_the_exchange(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> Any:
        return _with(exchange, lambda sync: sync.exchange_now("a rank", lambda own: own.link.rank))

    assert run_exchanges(3, body) == [0, 1, 2]


def test_weights_that_differ_are_told_on_all_ranks_and_the_exchange_goes_on(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model = nn.Linear(2, 1)
        with torch.no_grad():
            model.weight.fill_(float(exchange.link.rank == 1))
            model.bias.zero_()

        def compare(sync: GradientSync) -> None:
            with pytest.raises(StateError, match="weights of rank 1 differ from those of rank 0"):
                compare_now(sync, replica_hashes(model, None, crc32c_of))
            named_barrier(sync)

        _with(exchange, compare)

    run_exchanges(3, body)


def test_a_missing_rank_is_named_with_the_step(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        if exchange.link.rank == 1:
            exchange.close()
            return

        def call(sync: GradientSync) -> None:
            with pytest.raises(ExchangeError) as caught:
                named_barrier(sync)
            assert "a number in the named barrier before step 3" in "".join(caught.value.__notes__)

        _with(exchange, call)

    run_exchanges(2, body, Plan())
