"""Pipe-SGD's claim (equation 4): a step takes max(compute, communication) where D-Sync takes their sum."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.exchange import Exchange
from gradwire.links.base import Link
from gradwire.links.throttle import Port, ThrottledLink
from gradwire.training import DSync, PipeSGD, StepRecord

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
        DSync(model, optimizer, exchange)
        if pipeline is None
        else PipeSGD(model, optimizer, exchange, pipeline)
    )
    with method:
        for _ in range(3):
            method.step(compute_loss)
        total = StepRecord()
        for _ in range(STEPS):
            total += method.step(compute_loss)
    return total


@pytest.mark.parametrize(("compute_s", "comm_s"), [(0.12, 0.08), (0.05, 0.15)])
def test_a_pipelined_step_hides_the_shorter_part(compute_s: float, comm_s: float, run_ranks: Ranks) -> None:
    wrap = _throttled(4 * FLOATS / comm_s)
    synchronous = run_ranks(2, lambda e: _run(e, None, compute_s), wrap=wrap)[0]
    pipelined = run_ranks(2, lambda e: _run(e, 2, compute_s), wrap=wrap)[0]
    longer, both = STEPS * max(compute_s, comm_s), STEPS * (compute_s + comm_s)
    assert both * 0.95 < synchronous.step_s < both * 1.6
    assert longer * 0.95 < pipelined.step_s < longer * 1.4
    assert pipelined.step_s < 0.9 * synchronous.step_s
    assert synchronous.wait_s == pytest.approx(STEPS * comm_s, rel=0.4)
    assert pipelined.wait_s < longer - STEPS * compute_s + 0.25
    assert pipelined.exchange_s > 0.95 * STEPS * comm_s, "hidden time is still reported"


def test_pipeline_1_hides_nothing(run_ranks: Ranks) -> None:
    record = run_ranks(2, lambda e: _run(e, 1, 0.05), wrap=_throttled(4 * FLOATS / 0.05))[0]
    assert record.step_s > 0.95 * STEPS * 0.1
