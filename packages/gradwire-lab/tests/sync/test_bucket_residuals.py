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
from gradwire.sync.buckets import BucketResiduals
from gradwire_lab.simulated_device.simulated import Simulated

PLAN = Plan(parse("topk:0.25"), "star")


def _exchange(
    exchange: Exchange, gradient: torch.Tensor, residuals: list[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    values, together = gradient.clone(), BucketResiduals(residuals)
    exchange.all_reduce(values, average=False, residual=together.lend(values))
    together.keep()
    return values, residuals


def _add_one(lent: torch.Tensor | Residual | None, device: Device) -> torch.Tensor:
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


def test_on_a_device_they_are_lent_and_kept_as_on_the_host() -> None:
    device, nothing = Simulated(), torch.zeros(3)
    gradient = torch.cat([torch.tensor([0.0, 2.0]), nothing, torch.tensor([torch.nan, 0.0]), -nothing])
    found = []
    for owner in (device, None):
        residuals, values = [torch.full((n,), 1.5) for n in (2, 3, 2, 3)], gradient.clone()
        if owner is not None:
            values, residuals = owner.own(values), [owner.own(each) for each in residuals]
        together = BucketResiduals(residuals)
        seen = _add_one(together.lend(values), owner or CPU).tolist()
        together.note(values, torch.float32)
        together.keep()
        found.append((seen, [on_host(each).tolist() for each in residuals], together.usable))
    assert found[0] == found[1]
    assert found[0] == ([1.5, 1.5, 0, 0, 0, 1.5, 1.5, 0, 0, 0], [[2.5] * n for n in (2, 3, 2, 3)], False)


def test_a_sum_that_overflows_when_it_is_rounded_is_seen_on_a_device() -> None:
    values = Simulated().own(torch.tensor([1.0, 1e30]))
    together = BucketResiduals([Simulated().zeros(2)])
    together.lend(values)
    together.note(values, torch.bfloat16)
    assert together.usable
    together.note(values, torch.float16)
    assert not together.usable


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
        _add_one(lent, CPU)
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
        _add_one(lent, CPU)
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
