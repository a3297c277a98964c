"""A step whose average is not finite is nobody's: no rank's residual changes, in none of its buckets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.codecs import parse
from gradwire.errors import SpecError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.bucket.residual import Residuals
from support.fake_buckets import FakeBucket, reducer_over
from support.sums import bits

Ranks = Callable[..., list[Any]]
COUNT, WORLD = 40, 3


class Trainee:
    """Hands two buckets a step over, of a parameter each, and keeps what comes back."""

    def __init__(self, exchange: Exchange, dtype: torch.dtype) -> None:
        self.dtype, self.rank = dtype, exchange.link.rank
        self.owners = {torch.zeros(COUNT, dtype=dtype): name for name in ("first", "second")}
        self.reducer, self.sync = reducer_over(exchange, self.owners)
        self.residuals = self.sync.residuals

    def step(self, number: int, spoilt: float | None = None) -> torch.Tensor:
        """Return the averages; ``spoilt`` is a value of rank 1's second bucket."""
        generator = torch.Generator().manual_seed(10 * number + self.rank)
        buffers = [torch.randn(COUNT, generator=generator).to(self.dtype) for _ in self.owners]
        if spoilt is not None and self.rank == 1:
            buffers[1][7] = spoilt
        for index, (buffer, owner) in enumerate(zip(buffers, self.owners, strict=True)):
            self.reducer.take(FakeBucket(index, buffer, index == 1, [owner]), last_waits=True)
        return torch.cat(buffers)

    def state(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = self.residuals.state_dict()["residuals"]
        return found


@pytest.mark.parametrize("spec", ["topk:0.2", "quantize:4", "errbound:2^-4"])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("spoilt", [math.inf, math.nan])
def test_one_bad_value_on_one_rank_changes_no_residual_and_no_later_step(
    spec: str, algorithm: str, spoilt: float, run_exchanges: Ranks
) -> None:
    def body(exchange: Exchange) -> list[torch.Tensor]:
        straight, interrupted = (Trainee(exchange, torch.float32) for _ in range(2))
        averages = [straight.step(number) for number in range(4)]
        assert straight.state()["first"].any()
        for number in range(2):
            assert torch.equal(interrupted.step(number), averages[number])
        before = interrupted.state()
        lost = interrupted.step(99, spoilt)
        assert lost[:COUNT].isfinite().all()
        assert not lost[COUNT:].isfinite().all()
        after = interrupted.state()
        assert all(torch.equal(bits(before[name]), bits(after[name])) for name in ("first", "second"))
        for number in range(2, 4):
            assert torch.equal(bits(interrupted.step(number)), bits(averages[number]))
        for each in (straight, interrupted):
            each.sync.close()
        return [*averages, lost]

    plan = Plan(parse(spec), algorithm, residual=True)
    first, *others = run_exchanges(WORLD, body, plan)
    for other in others:
        assert all(torch.equal(bits(one), bits(two)) for one, two in zip(first, other, strict=True))


def test_an_average_that_only_rounding_makes_infinite_counts_as_lost(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        trainee = Trainee(exchange, torch.float16)
        trainee.step(0)
        for residual in (trainee.residuals.of(name, COUNT) for name in ("first", "second")):
            assert residual is not None
            residual.fill_(7e4)  # fits float32, of which the averages are, but not float16
        before = trainee.state()
        average = trainee.step(1)
        assert average.isinf().any()
        assert all(torch.equal(kept, before[name]) for name, kept in trainee.state().items())
        trainee.sync.close()

    run_exchanges(2, body, Plan(parse("topk:0.5")))


def test_residuals_follow_a_scale() -> None:
    residuals = Residuals(Plan(parse("topk:0.5")), 0, 1)
    held = residuals.of("a", 2)
    assert held is not None
    held.copy_(torch.tensor([3.0, -0.5]))
    residuals.scale(0.5)
    assert held.tolist() == [1.5, -0.25]
    for factor in (0, -1.0, math.inf, math.nan, True, "2"):
        with pytest.raises(SpecError, match="expected a finite factor above 0 for the residuals, got"):
            residuals.scale(factor)  # type: ignore[arg-type]
    assert held.tolist() == [1.5, -0.25]
