"""The residual of a parameter that a rank has not used waits: DDP may throw such an average away."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gradwire.codecs import parse
from gradwire.devices import CPU, Device, device_of, on_host
from gradwire.exchange import Exchange
from gradwire.exchange.feedback import Residual
from gradwire.plan import Plan
from gradwire.sync.bucket.error_feedback import BucketResiduals

PLAN = Plan(parse("topk:0.25"), "star")


def _exchange(
    exchange: Exchange, gradient: torch.Tensor, residuals: list[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    values, together = gradient.clone(), BucketResiduals(residuals)
    exchange.all_reduce(values, average=False, residual=together.lend(values))
    together.keep()
    return values, residuals


def add_one(lent: torch.Tensor | Residual | None, device: Device) -> torch.Tensor:
    """Lose as much as is lent and 1 more, as a walk would; return what is lent."""
    if isinstance(lent, Residual):
        seen = torch.cat([*lent.values])
        lent.lost.copy_(seen + 1.0)
        lent.replaced = True
        assert device is CPU
        return seen
    assert lent is not None
    assert device_of(lent) is device
    seen = on_host(lent).clone()
    device.launch(partial(lent.add_, 1.0), [], [lent])
    return seen


def test_what_no_rank_has_used_keeps_its_residuals(run_exchanges: Callable[..., list[Any]]) -> None:
    def body(exchange: Exchange) -> tuple[torch.Tensor, list[torch.Tensor]]:
        rank = exchange.link.rank
        gradient = torch.cat([torch.arange(1.0, 9.0) + rank, torch.zeros(8)])
        return _exchange(exchange, gradient, [torch.ones(8), torch.full((8,), 100.0 + rank)])

    found = run_exchanges(2, body, PLAN)
    for rank, (total, residuals) in enumerate(found):
        assert total[8:].tolist() == [0.0] * 8
        assert residuals[1].tolist() == [100.0 + rank] * 8
    assert torch.equal(found[0][0], found[1][0])
    exact = 2 * torch.arange(1.0, 9.0) + 1 + 2
    assert torch.equal(found[0][0][:8] + found[0][1][0] + found[1][1][0], exact)


def test_what_one_rank_has_used_keeps_the_sum(run_exchanges: Callable[..., list[Any]]) -> None:
    def body(exchange: Exchange) -> tuple[torch.Tensor, list[torch.Tensor]]:
        used = float(exchange.link.rank)
        gradient = torch.cat([torch.arange(1.0, 9.0), used * torch.arange(1.0, 9.0)])
        return _exchange(exchange, gradient, [torch.zeros(8), torch.full((8,), 3.0)])

    found = run_exchanges(2, body, PLAN)
    assert torch.equal(found[0][0], found[1][0])
    kept = found[0][1][1] + found[1][1][1]
    assert torch.equal(found[0][0][8:] + kept, torch.arange(1.0, 9.0) + 6.0)


def test_a_plan_without_residuals_has_none_to_keep() -> None:
    residuals, values = BucketResiduals([]), torch.full((4,), torch.inf)
    assert residuals.lend(values) is None
    residuals.note(values, torch.float32)
    assert residuals.usable
    residuals.keep()


def test_the_halves_of_one_memory_change_places() -> None:
    """The tensors stay the same ones; their memory is that of the step before the last."""
    residuals, values = [torch.zeros(n) for n in (3, 0, 5)], torch.ones(8)
    places = []
    for step in range(1, 5):
        together = BucketResiduals(residuals)
        lent = together.lend(values)
        add_one(lent, CPU)
        together.keep()
        assert [each.tolist() for each in residuals] == [[float(step)] * n for n in (3, 0, 5)]
        places.append(residuals[0].data_ptr())
    assert places[0] == places[2] != places[1] == places[3]
    assert residuals[2].data_ptr() == residuals[0].data_ptr() + 3 * 4


def test_other_buckets_than_before_get_a_memory_of_their_own() -> None:
    residuals = [torch.zeros(n) for n in (3, 4, 5)]
    for numbers in ((0, 1, 2), (0, 1, 2), (1, 0), (2,), (0, 2), (2, 1, 0), (2, 1, 0)):
        chosen = [residuals[number] for number in numbers]
        before = [each.clone() for each in residuals]
        together = BucketResiduals(chosen)
        lent = together.lend(torch.ones(sum(each.numel() for each in chosen)))
        add_one(lent, CPU)
        assert all(torch.equal(each, old) for each, old in zip(residuals, before, strict=True))
        together.keep()
        for number, (each, old) in enumerate(zip(residuals, before, strict=True)):
            assert torch.equal(each, old + 1.0 if number in numbers else old)


def test_a_walk_that_kept_nothing_leaves_them_as_they_were() -> None:
    residual = torch.ones(4)
    together = BucketResiduals([residual])
    assert isinstance(together.lend(torch.ones(4)), Residual)
    together.keep()
    assert residual.tolist() == [1.0] * 4
