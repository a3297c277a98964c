"""Methods with a ledger: bytes by hand, the step records' sums, and the same training as without one."""

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
from gradwire.sync.ledger.counts import BucketCounts, StepRecord
from gradwire.wire import HEADER_NBYTES
from support.noise import likely, undisturbed
from support.pipes import made, pipe_sgd

Ranks = Callable[..., list[Any]]
Make = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
STEPS, FLOATS = 5, 58


def train(
    exchange: Exchange, model: nn.Module, batch_loss: BatchLoss, ledger: Ledger | None
) -> tuple[torch.Tensor, StepRecord]:
    """Return the weights and the sum of the records, the drain's included."""
    rank, total = exchange.link.rank, StepRecord()
    method = made(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange, ledger=ledger)
    with method:
        for step in range(STEPS):
            total += method.step(batch_loss(model, step, slice(rank, rank + 1)))
        total += method.drain()
    return nn.utils.parameters_to_vector(model.parameters()).detach(), total


@pytest.mark.parametrize("pipeline", [1, 2, 3])
@pytest.mark.parametrize("bucket_nbytes", [None, 80])
def test_the_ledger_has_what_the_step_records_have(
    pipeline: int, bucket_nbytes: int | None, run_exchanges: Ranks, make_model: Make, batch_loss: BatchLoss
) -> None:
    plan = Plan(parse("errbound:2^-10"), pipeline=pipeline, bucket_nbytes=bucket_nbytes)

    def body(exchange: Exchange) -> tuple[torch.Tensor, StepRecord, Ledger]:
        ledger = Ledger(exchange.link.rank)
        return *train(exchange, make_model(), batch_loss, ledger), ledger

    (without, _), *_ = run_exchanges(3, lambda e: train(e, make_model(), batch_loss, None), plan)

    def attempt() -> None:
        for weights, record, ledger in run_exchanges(3, body, plan):
            summary = ledger.summary()
            total = summary.total
            assert summary.steps == STEPS
            assert (total.cost.raw_nbytes, total.cost.wire_nbytes) == (
                record.cost.raw_nbytes,
                record.cost.wire_nbytes,
            )
            assert total.cost.total_s == pytest.approx(record.cost.total_s)
            assert total.exposed_s <= record.wait_s + 1e-9
            likely(total.exposed_s > record.wait_s - 0.01, total, record)
            assert total.gradient_nbytes == STEPS * 4 * FLOATS
            assert summary.bypasses == {}
            names = ["gradient"] if bucket_nbytes is None else ["bucket 1", "bucket 2", "bucket 3"]
            assert sorted(summary.buckets) == sorted([*names, "weights"])
            assert {summary.buckets[name].exchanges for name in names} == {STEPS}
            assert torch.equal(weights, without)

    undisturbed(attempt)


def test_bytes_are_those_by_hand(run_exchanges: Ranks, make_model: Make, batch_loss: BatchLoss) -> None:
    """Two ranks in a ring send half a gradient twice a step; rank 0 sends the weights once."""

    def body(exchange: Exchange) -> Ledger:
        ledger = Ledger(exchange.link.rank)
        train(exchange, make_model(), batch_loss, ledger)
        return ledger

    for rank, ledger in enumerate(run_exchanges(2, body)):
        gradient, weights = (ledger.summary().buckets[name] for name in ("gradient", "weights"))
        assert gradient.cost.raw_nbytes == STEPS * 4 * FLOATS
        assert gradient.cost.wire_nbytes == STEPS * (4 * FLOATS + 2 * HEADER_NBYTES)
        assert (weights.exchanges, weights.gradient_nbytes) == (1, 0)
        assert weights.cost.raw_nbytes == (4 * FLOATS if rank == 0 else 0)


def test_a_gradient_that_is_waited_for_twice_counts_once(
    run_exchanges: Ranks, make_model: Make, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> list[BucketCounts]:
        model, ledger, seen = make_model(), Ledger(exchange.link.rank), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pipe_sgd(model, optimizer, exchange, pipeline=3, ledger=ledger) as method:
            for step in range(2):
                method.step(batch_loss(model, step, slice(exchange.link.rank, exchange.link.rank + 1)))
            for wait in (method.in_flight, method.in_flight, method.drain):
                wait()
                seen.append(ledger.summary().buckets["gradient"])
        return seen

    for seen in run_exchanges(2, body):
        assert [(counts.exchanges, counts.cost.raw_nbytes) for counts in seen] == [(2, 2 * 4 * FLOATS)] * 3
