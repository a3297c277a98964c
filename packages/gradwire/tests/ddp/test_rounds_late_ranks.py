"""A rank may come to a step late, but once it has begun it may not stand still."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.ddp.rounds import Rounds
from gradwire.errors import ExchangeError, LinkTimeoutError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.residual import Residuals
from support import amp_ranks
from support.fake_buckets import FakeBucket
from support.sums import bits

Ranks = Callable[..., list[Any]]
TIMEOUT_S, LATE_S, BEGIN_S = 1.0, 2.5, 30.0


@pytest.mark.parametrize("algorithm", ["ring", "star", "tree"])
@pytest.mark.parametrize("late_at", [0, 1])
def test_only_the_first_bucket_is_waited_for_so_long(algorithm: str, late_at: int, run_exchanges: Ranks) -> None:
    """Rank 1 comes late to the second step, or stands still in it."""

    def body(exchange: Exchange) -> BaseException | list[float]:
        link = exchange.link
        no_group: Any = None
        residuals = Residuals(exchange.plan, link.rank, link.world)
        rounds = Rounds(exchange, no_group, {}, residuals, Ledger(link.rank), begin_timeout_s=BEGIN_S)
        buffers = [torch.full((8,), link.rank + 1.0) for _ in range(4)]
        try:
            for number, buffer in enumerate(buffers):
                if link.rank == 1 and number == 2 + late_at:
                    time.sleep(LATE_S)
                index = number % 2
                rounds.take(FakeBucket(index, buffer, last=index == 1), last_waits=True)
        except ExchangeError as error:
            return error
        finally:
            rounds.close()
        return [float(buffer.mean()) for buffer in buffers]

    found = run_exchanges(3, body, Plan(algorithm=algorithm), timeout_s=TIMEOUT_S)
    if late_at == 0:
        assert found == [[2.0] * 4] * 3
    else:
        assert all(isinstance(error, ExchangeError) for error in found)
        assert any(isinstance(error.__cause__, LinkTimeoutError) for error in found)


@pytest.mark.processes
def test_with_ddp_a_late_rank_is_waited_for_and_a_step_that_a_grad_scaler_skips_leaves_no_trace(
    run_processes: Ranks,
) -> None:
    results = run_processes(2, amp_ranks.late_and_scaled)
    assert "nothing happened within 0.5 s" in results[0]["too late"]
    assert results[1]["too late"] is not None
    for found in results:
        assert found["late"] == [1.5] * 3  # the average of 1 and 2, before and after the wait
        assert found["scales"] == {
            "straight": 1024.0, "skipped": 512.0, "following": 512.0, "forgetful": 512.0
        }  # fmt: skip
        assert found["residuals kept"]
        assert torch.equal(bits(found["skipped"]), bits(found["straight"]))
        assert torch.equal(bits(found["following"]), bits(found["straight"]))
        assert not torch.equal(found["forgetful"], found["straight"]), "the scale of residuals matters"
