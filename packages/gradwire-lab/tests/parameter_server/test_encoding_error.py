"""Workers measure what encoding loses of their gradients, as the core's methods do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import Ledger
from gradwire.codecs import parse
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire_lab.parameter_server.ps_sync import Server, Worker
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker
from support.ledgers import Kept
from sync.bucket.test_encoding_error import (
    BatchLoss,
    MakeModel,
    Ranks,
    Shares,
    by_hand,
    check_shares,
    shares_of,
)


def serve(stale: bool, model: nn.Module, exchange: Exchange) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    if stale:
        StaleServer(model, optimizer, exchange.plan, 0, group=exchange.link).serve(5)
    else:
        Server(model, optimizer, exchange.plan, group=exchange.link).serve(5)


def work(stale: bool, model: nn.Module, exchange: Exchange, loss: Callable[[], torch.Tensor]) -> Shares:
    """Return what each step has lost, by parameter."""
    sink = Kept()
    how: dict[str, Any] = {"ledger": Ledger(1, [sink]), "group": exchange.link}
    with (
        StaleWorker(model, exchange.plan, 0, **how)
        if stale
        else Worker(model, exchange.plan, **how) as worker
    ):
        for _ in range(5):
            worker.step(loss)
    return shares_of(sink)


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize(
    ("plan", "steps"),
    [
        (Plan(parse("errbound:2^-6"), "star"), [2, 4]),
        (Plan(parse("quantize:4"), "star"), [1, 2, 3, 4, 5]),
    ],
)
def test_a_workers_shares_are_those_by_hand(
    stale: bool,
    plan: Plan,
    steps: list[int],
    run_exchanges: Ranks,
    make_model: MakeModel,
    batch_loss: BatchLoss,
) -> None:
    def body(exchange: Exchange) -> tuple[Shares, dict[str, float]]:
        model = make_model()
        if exchange.link.rank == 0:
            serve(stale, model, exchange)
            return {}, {}
        loss = batch_loss(model, 0, slice(1, 2))
        wanted = by_hand(model, loss, str(plan.codec))
        return work(stale, model, exchange, loss), wanted

    _, (found, wanted) = run_exchanges(2, body, plan)
    check_shares(found, wanted, plan, steps)
