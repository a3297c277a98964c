"""What compute hides of the communication, on a slow link.

Pipe-SGD's claim (equation 4) is that a step takes max(compute, communication) where D-Sync takes their sum;
with buckets D-Sync hides what fits behind the rest of its own backward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn

from gradwire import DSync
from gradwire.exchange import Exchange
from gradwire.links.base import Link
from gradwire.links.throttle import Port, ThrottledLink
from gradwire.plan import Plan
from gradwire.sync.ledger.counts import StepRecord
from support.noise import likely, undisturbed
from support.pipes import pipe_sgd

Ranks = Callable[..., list[Any]]
FLOATS = 500 * 500  # a ring of two sends them once: half in each half
STEPS = 6


def _throttled(rate_nbytes_per_s: float) -> Callable[[Link], Link]:
    return lambda link: ThrottledLink(link, Port(rate_nbytes_per_s))


def _run(exchange: Exchange, pipeline: int | None, compute_s: float) -> StepRecord:
    """Return the sum of the steps once the pipeline is full."""
    model = nn.Linear(500, 500, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 500)

    def compute_loss() -> torch.Tensor:
        time.sleep(compute_s)
        return model(x).square().mean()  # type: ignore[no-any-return]

    method = (
        DSync(model, optimizer, exchange.plan, group=exchange.link)
        if pipeline is None
        else pipe_sgd(model, optimizer, exchange, pipeline)
    )
    with method:
        for _ in range(3):
            method.step(compute_loss)
        total = StepRecord()
        for _ in range(STEPS):
            total += method.step(compute_loss)
    return total


@pytest.mark.parametrize(("compute_s", "comm_s"), [(0.12, 0.08), (0.05, 0.15)])
def test_a_pipelined_step_hides_the_shorter_part(
    compute_s: float, comm_s: float, run_exchanges: Ranks
) -> None:
    wrap = _throttled(4 * FLOATS / comm_s)
    longer, both = STEPS * max(compute_s, comm_s), STEPS * (compute_s + comm_s)

    def attempt() -> None:
        synchronous = run_exchanges(2, lambda e: _run(e, None, compute_s), wrap=wrap)[0]
        pipelined = run_exchanges(2, lambda e: _run(e, 2, compute_s), wrap=wrap)[0]
        assert synchronous.step_s > both * 0.95
        assert pipelined.step_s > longer * 0.95
        assert synchronous.wait_s > 0.6 * STEPS * comm_s
        assert pipelined.cost.total_s > 0.95 * STEPS * comm_s, "hidden time is still reported"
        likely(synchronous.step_s < both * 1.6, synchronous)
        likely(pipelined.step_s < longer * 1.4, pipelined)
        likely(pipelined.step_s < 0.9 * synchronous.step_s, pipelined, synchronous)
        likely(synchronous.wait_s < 1.4 * STEPS * comm_s, synchronous)
        likely(pipelined.wait_s < longer - STEPS * compute_s + 0.25, pipelined)

    undisturbed(attempt)


def test_pipeline_1_hides_nothing(run_exchanges: Ranks) -> None:
    record = run_exchanges(2, lambda e: _run(e, 1, 0.05), wrap=_throttled(4 * FLOATS / 0.05))[0]
    assert record.step_s > 0.95 * STEPS * 0.1


class _Pause(torch.autograd.Function):
    """Takes its time in backward, when the gradients of the layers behind it are there already."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return grad, None


def _run_layers(exchange: Exchange, backward_s: float) -> StepRecord:
    """Return the sum of the steps of a model whose last layer holds nearly all weights."""
    first, last = nn.Linear(4, 500), nn.Linear(500, 500, bias=False)
    model, pause = nn.Sequential(first, last), cast(Any, _Pause.apply)
    total = StepRecord()
    with DSync(
        model, torch.optim.SGD(model.parameters(), lr=0.1), exchange.plan, group=exchange.link
    ) as method:
        method.synchronise()
        for _ in range(STEPS):
            total += method.step(lambda: last(pause(first(torch.ones(2, 4)), backward_s)).square().mean())
    return total


def test_buckets_hide_the_exchange_behind_the_rest_of_backward(run_exchanges: Ranks) -> None:
    backward_s, comm_s = 0.12, 0.08
    wrap = _throttled(4 * FLOATS / comm_s)

    def attempt() -> None:
        one, two = (
            run_exchanges(2, lambda e: _run_layers(e, backward_s), plan, wrap=wrap)[0]
            for plan in (Plan(), Plan(bucket_nbytes=4 * FLOATS))
        )
        assert one.step_s > 0.95 * STEPS * (backward_s + comm_s)
        assert two.cost.raw_nbytes == one.cost.raw_nbytes
        assert two.cost.total_s > 0.95 * STEPS * comm_s, "hidden time is still reported"
        assert one.wait_s == pytest.approx(one.cost.total_s)
        assert two.compute_s > 0.95 * STEPS * backward_s
        likely(two.step_s < 0.85 * one.step_s, two, one)
        likely(two.wait_s < 0.5 * two.cost.total_s, two)

    undisturbed(attempt)
