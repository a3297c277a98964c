from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.ddp.between_steps import BetweenSteps
from gradwire.errors import ExchangeError, StateError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.hashes import crc32c_of, replica_hashes
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.meter import LostMeter
from gradwire.sync.thread import CommunicationThread

Ranks = Callable[..., list[Any]]


def _with(exchange: Exchange, call: Callable[[BetweenSteps], Any]) -> Any:
    meter = LostMeter(exchange.link.rank, exchange.plan, [], Ledger(exchange.link.rank), False)
    thread = CommunicationThread(exchange, meter)
    try:
        return call(BetweenSteps(exchange, thread, 5.0, exchange.transport.check, lambda: 3))
    finally:
        thread.close()


def test_all_ranks_get_the_answer_of_the_exchange(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> Any:
        return _with(exchange, lambda between: between.answer("a rank", lambda own: own.link.rank))

    assert run_exchanges(3, body) == [0, 1, 2]


def test_weights_that_differ_are_told_on_all_ranks_and_the_exchange_goes_on(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model = nn.Linear(2, 1)
        with torch.no_grad():
            model.weight.fill_(float(exchange.link.rank == 1))
            model.bias.zero_()

        def compare(between: BetweenSteps) -> None:
            with pytest.raises(StateError, match="weights of rank 1 differ from those of rank 0"):
                between.compare(replica_hashes(model, None, crc32c_of))
            between.roll_call()

        _with(exchange, compare)

    run_exchanges(3, body)


def test_a_missing_rank_is_named_with_the_step(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        if exchange.link.rank == 1:
            exchange.close()
            return

        def call(between: BetweenSteps) -> None:
            with pytest.raises(ExchangeError) as caught:
                between.roll_call()
            assert "a number in the roll call before step 3" in "".join(caught.value.__notes__)

        _with(exchange, call)

    run_exchanges(2, body, Plan())
