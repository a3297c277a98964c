"""Sharded training is DSync's, but for what replicas are rounded; and costs fewer bytes and less memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import DSync, Ledger, Sharded
from gradwire.codecs import parse
from gradwire.errors import SpecError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sharded import ELEMENTWISE
from support.sharded_ranks import LARGE, adamw, bits, loss_of, make_model

Ranks = Callable[..., list[Any]]
STEPS = 6


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("optimizer", [adamw, lambda model: torch.optim.SGD(model.parameters(), 0.1, 0.9)])
def test_without_rounding_it_is_d_sync(world: int, optimizer: Any, run_exchanges: Ranks) -> None:
    def trained(exchange: Exchange, method: Any, **how: Any) -> torch.Tensor:
        model = make_model()
        with method(model, optimizer(model), exchange.plan, group=exchange.link, **how) as going:
            for t in range(STEPS):
                going.step(loss_of(model, t, exchange.link.rank))
        return bits(model)

    plain = run_exchanges(world, lambda exchange: trained(exchange, DSync))
    for found in run_exchanges(world, lambda exchange: trained(exchange, Sharded, replicas="fp32")):
        torch.testing.assert_close(found, plain[0], rtol=0, atol=1e-7)


@pytest.mark.parametrize("spec", ["identity", "quantize:8", "terngrad", "fp8"])
def test_replicas_are_the_rounded_masters_and_the_same_on_all_ranks(spec: str, run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> list[torch.Tensor]:
        model, found = make_model(), []
        with Sharded(model, adamw(model), exchange.plan, group=exchange.link) as method:
            for t in range(STEPS):
                method.step(loss_of(model, t, exchange.link.rank))
                exact = torch.cat([each.reshape(-1) for each in method.masters().values()])
                assert torch.equal(exact.bfloat16().float(), bits(model))
                assert not torch.equal(exact, bits(model)), "masters are finer than replicas"
                found.append(bits(model))
        return found

    ranks = run_exchanges(3, body, Plan(parse(spec)))
    assert all(torch.equal(a, b) for other in ranks[1:] for a, b in zip(ranks[0], other, strict=True))
    assert not torch.equal(ranks[0][0], ranks[0][-1])


def test_it_sends_at_most_three_quarters_of_what_an_all_reduce_sends(run_exchanges: Ranks) -> None:
    """At a small learning rate most weights keep their bits."""

    def sent(exchange: Exchange, method: Any) -> int:
        model = copy.deepcopy(LARGE)
        optimizer, total = torch.optim.AdamW(model.parameters(), lr=1e-4), 0
        x = torch.randn(8, 200, generator=torch.Generator().manual_seed(exchange.link.rank))
        with method(model, optimizer, exchange.plan, group=exchange.link) as going:
            going.synchronise()
            for _ in range(5):
                total += going.step(lambda: (model(x) - x).square().mean()).cost.wire_nbytes
        return total

    plan = Plan(parse("quantize:8"))
    whole = run_exchanges(4, lambda exchange: sent(exchange, DSync), plan)
    sharded = run_exchanges(4, lambda exchange: sent(exchange, Sharded), plan)
    assert max(sharded) <= 0.75 * min(whole)


def test_the_average_is_within_the_bound_of_the_encodings(run_exchanges: Ranks) -> None:
    """One step of SGD with the rate 1 shows the average; a sum is encoded world - 1 times."""
    codec, world = parse("truncate:16"), 4

    def body(exchange: Exchange) -> torch.Tensor:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        before = bits(model)
        with Sharded(model, optimizer, exchange.plan, replicas="fp32", group=exchange.link) as method:
            method.step(loss_of(model, 0, exchange.link.rank))
        return before - bits(model)

    exact, lossy = run_exchanges(world, body), run_exchanges(world, body, Plan(codec))
    largest = torch.full((1,), float(exact[0].abs().max()) * world * 4)
    assert 0 < (exact[0] - lossy[0]).abs().max() <= (world - 1) * codec.bound(largest) / world + 1e-6


@pytest.mark.parametrize("scale", [1.0, 1e22])  # squares of the second exceed float32
def test_clipping_scales_to_the_norm_of_the_whole_average(scale: float, run_exchanges: Ranks) -> None:
    def body(exchange: Exchange, factor: float, max_norm: float | None) -> torch.Tensor:
        model = make_model()
        before, optimizer = bits(model), torch.optim.SGD(model.parameters(), lr=1.0)
        how: dict[str, Any] = {"replicas": "fp32", "max_norm": max_norm, "group": exchange.link}
        loss = loss_of(model, 0, exchange.link.rank)
        with Sharded(model, optimizer, exchange.plan, **how) as method:
            method.step(lambda: factor * loss())
        return before - bits(model)

    free = run_exchanges(3, lambda exchange: body(exchange, 1.0, None))[0]
    clipped = run_exchanges(3, lambda exchange: body(exchange, scale, 0.01))[0]
    torch.testing.assert_close(clipped, free * (0.01 / free.norm()), rtol=1e-4, atol=1e-7)


def test_a_parameter_that_no_rank_reaches_is_not_stepped(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> torch.Tensor:
        model = make_model()
        model.register_parameter("unreached", nn.Parameter(torch.ones(5)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
        with Sharded(model, optimizer, exchange.plan, group=exchange.link) as method:
            method.step(loss_of(model, 0, exchange.link.rank))
        return model.get_parameter("unreached").detach()

    assert all(bool((each == 1).all()) for each in run_exchanges(3, body))


def test_weights_that_are_no_numbers_any_more_have_the_same_bits_on_all_ranks(run_exchanges: Ranks) -> None:
    def scaled(loss: Callable[[], torch.Tensor], factor: float) -> torch.Tensor:
        return factor * loss()

    def body(exchange: Exchange) -> torch.Tensor:
        model = make_model()
        factor = math.nan if exchange.link.rank == 1 else 1.0
        with Sharded(model, adamw(model), exchange.plan, group=exchange.link) as method:
            for t in range(2):
                loss = loss_of(model, t, exchange.link.rank)
                method.step(partial(scaled, loss, factor))
        return bits(model).view(torch.int32)

    found = run_exchanges(3, body)
    assert bool(found[0].view(torch.float32).isnan().all())
    assert all(torch.equal(each, found[0]) for each in found)


def test_the_ledger_counts_both_halves(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model, ledger = make_model(), Ledger(exchange.link.rank)
        with Sharded(model, adamw(model), exchange.plan, group=exchange.link, ledger=ledger) as method:
            record = method.step(loss_of(model, 0, exchange.link.rank))
        assert record.cost.wire_nbytes > 0
        assert {"gradient", "weights"} <= set(ledger.summary().buckets)

    run_exchanges(2, body)


@pytest.mark.parametrize("kind", sorted(ELEMENTWISE, key=str))
def test_every_elementwise_optimizer_steps_as_with_d_sync(kind: Any, run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> list[torch.Tensor]:
        found = []
        for make in (DSync, lambda *args, **how: Sharded(*args, replicas="fp32", **how)):
            model = make_model()
            optimizer = kind(model.parameters(), lr=1e-2)
            with make(model, optimizer, exchange.plan, group=exchange.link) as method:
                for t in range(3):
                    method.step(loss_of(model, t, exchange.link.rank))
            found.append(bits(model))
        return found

    for plain, sharded in run_exchanges(2, body):
        torch.testing.assert_close(sharded, plain, rtol=0, atol=1e-7)


def test_an_optimizer_may_hold_frozen_parameters(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model = make_model()
        frozen = model.get_parameter("0.weight").requires_grad_(False)
        before, others = frozen.clone(), bits(model)[frozen.numel() :]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
        with Sharded(model, optimizer, exchange.plan, group=exchange.link) as method:
            method.step(loss_of(model, 0, exchange.link.rank))
        assert torch.equal(frozen, before)
        assert not torch.equal(bits(model)[frozen.numel() :], others)

    run_exchanges(2, body)


def test_parameters_that_the_optimizer_gets_later_are_refused(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model = make_model()
        optimizer = adamw(model)
        with Sharded(model, optimizer, exchange.plan, group=exchange.link) as method:
            method.step(loss_of(model, 0, exchange.link.rank))
            model.append(nn.Linear(4, 4))
            optimizer.add_param_group({"params": list(model[-1].parameters())})
            with pytest.raises(
                SpecError, match=r"got one with 2 new parameters \(the first of shape \(4, 4\)\)"
            ):
                method.step(loss_of(model, 1, exchange.link.rank))

    run_exchanges(2, body)


def test_a_long_way_of_a_weight_is_no_value_that_is_not_finite(run_exchanges: Ranks) -> None:
    """From -1 to 2 it is as many words as the bits of a NaN say."""

    def body(exchange: Exchange) -> None:
        model = make_model()
        nn.utils.vector_to_parameters(torch.full((103,), -1.0), model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with Sharded(model, optimizer, exchange.plan, replicas="fp32", group=exchange.link) as method:
            record = method.step(lambda: -3 * torch.cat([each.view(-1) for each in model.parameters()]).sum())
        assert bool((bits(model) == 2).all())
        assert record.cost.nonfinite == 0

    run_exchanges(2, body)
