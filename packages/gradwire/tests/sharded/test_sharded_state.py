"""Where sharded training begins and goes on from: states, and weights that somebody writes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import Sharded, redivide
from gradwire.codecs import parse
from gradwire.errors import ExchangeError, StateError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from support.sharded_ranks import adamw, bits, loss_of, make_model

Ranks = Callable[..., list[Any]]
STEPS = 6


def test_the_optimizer_keeps_its_share_of_the_state(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> int:
        model = make_model()
        optimizer = adamw(model)
        with Sharded(model, optimizer, exchange.plan, group=exchange.link) as method:
            method.step(loss_of(model, 0, exchange.link.rank))
        return sum(each["exp_avg"].numel() for each in optimizer.state.values())

    counts, total = run_exchanges(4, body), bits(make_model()).numel()
    assert sum(counts) == total
    assert max(counts) - min(counts) <= 1


def test_it_goes_on_from_a_state_bit_for_bit(run_exchanges: Ranks) -> None:
    plan = Plan(parse("quantize:4"), residual=True)

    def straight(exchange: Exchange) -> torch.Tensor:
        return body(exchange, None)

    def body(exchange: Exchange, stop: int | None) -> torch.Tensor:
        rank, model = exchange.link.rank, make_model()
        optimizer = adamw(model)
        method = Sharded(model, optimizer, exchange.plan, group=exchange.link)
        for t in range(STEPS):
            if t == stop:
                states = copy.deepcopy((method.state_dict(), optimizer.state_dict()))
                method.close()
                model = make_model()
                optimizer = adamw(model)
                method = Sharded(model, optimizer, exchange.plan, group=exchange.link)
                optimizer.load_state_dict(states[1])
                method.load_state_dict(states[0])
            method.step(loss_of(model, t, rank))
        method.close()
        return bits(model)

    expected = run_exchanges(3, straight, plan)
    for found in run_exchanges(3, lambda exchange: body(exchange, 3), plan):
        assert torch.equal(found, expected[0])


@pytest.mark.parametrize(("replicas", "dtype"), [("bf16", torch.int16), ("fp32", torch.int32)])
def test_a_state_keeps_what_the_replicas_hold_as_whole_numbers(
    replicas: Any, dtype: torch.dtype, run_exchanges: Ranks
) -> None:
    def body(exchange: Exchange) -> tuple[torch.Tensor, torch.Tensor]:
        model = make_model()
        with Sharded(model, adamw(model), exchange.plan, replicas=replicas, group=exchange.link) as method:
            method.step(loss_of(model, 0, exchange.link.rank))
            state = method.state_dict()
        return state[f"gradwire/rank{exchange.link.rank}/model/words"], bits(model)

    for words, weights in run_exchanges(2, body):
        assert words.dtype == dtype
        held = weights.bfloat16() if replicas == "bf16" else weights
        assert torch.equal(words, held.view(dtype))


def test_inference_mode_does_not_stop_training(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model = make_model()
        with Sharded(model, adamw(model), exchange.plan, group=exchange.link) as method:
            method.step(loss_of(model, 0, exchange.link.rank))
            state = method.state_dict()
            with torch.inference_mode():
                method.load_state_dict(state)
            method.step(loss_of(model, 1, exchange.link.rank))
            with torch.inference_mode():
                model.get_parameter("0.bias").fill_(1)
                method.masters()
            method.step(loss_of(model, 2, exchange.link.rank))
        assert bool(bits(model).isfinite().all())

    run_exchanges(2, body)


def test_weights_that_somebody_writes_are_taken_as_they_are(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model = make_model()
        with Sharded(model, adamw(model), exchange.plan, group=exchange.link) as method:
            method.step(loss_of(model, 0, exchange.link.rank))
            before = {name: each.clone() for name, each in method.masters().items()}
            with torch.no_grad():
                model.get_parameter("0.bias").fill_(1 + 2**-12)
            after = method.masters()
            assert bool((after.pop("0.bias") == 1 + 2**-12).all())
            assert bool((model.get_parameter("0.bias") == 1).all()), "rounded"
            assert all(torch.equal(before[name], each) for name, each in after.items()), "exact as before"

    run_exchanges(3, body)


def test_after_masters_have_failed_a_step_names_the_first_reason(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model, link = make_model(), exchange.link
        method = Sharded(model, adamw(model), exchange.plan, group=link)
        method.step(loss_of(model, 0, link.rank))
        if link.rank == 1:
            link.close()
        with pytest.raises(ExchangeError):
            method.masters()
        with pytest.raises(ExchangeError, match=r"can no longer be used \(.*broadcast"):
            method.step(loss_of(model, 1, link.rank))
        method.abort()

    run_exchanges(2, body)


def test_ranks_that_begin_different_have_the_masters_of_the_first(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model = make_model()
        nn.utils.vector_to_parameters(torch.full((103,), 1.0 + exchange.link.rank), model.parameters())
        with Sharded(model, adamw(model), exchange.plan, group=exchange.link) as method:
            assert all(bool((each == 1).all()) for each in method.masters().values())

    run_exchanges(3, body)


def test_a_state_from_before_the_first_step_begins_with_equal_weights(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> torch.Tensor:
        model = make_model()
        nn.utils.vector_to_parameters(torch.full((103,), 1.0 + exchange.link.rank), model.parameters())
        with Sharded(model, adamw(model), exchange.plan, group=exchange.link) as method:
            state = method.state_dict()
            method.step(loss_of(model, 0, exchange.link.rank))
            method.load_state_dict(state)
            method.step(loss_of(model, 0, exchange.link.rank))
        return bits(model)

    found = run_exchanges(3, body)
    assert all(torch.equal(each, found[0]) for each in found)


def test_weights_in_other_memory_are_taken_as_they_are(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with Sharded(model, optimizer, exchange.plan, group=exchange.link) as method:
            method.step(loss_of(model, 0, exchange.link.rank))
            nn.utils.vector_to_parameters(torch.full((103,), 2.0), model.parameters())
            method.step(loss_of(model, 1, exchange.link.rank))
        assert bool((bits(model) == 2).all())

    run_exchanges(2, body)


def test_half_a_step_is_no_state(run_exchanges: Ranks) -> None:
    """The exchange of the weights fails after rank 0 has updated its own."""

    def body(exchange: Exchange) -> None:
        model, link = make_model(), exchange.link
        optimizer = adamw(model)
        method = Sharded(model, optimizer, group=link)
        method.step(loss_of(model, 0, link.rank))
        saved = method.state_dict()
        if link.rank == 0:
            optimizer.register_step_post_hook(lambda *_: link.close())
        with pytest.raises(ExchangeError):
            method.step(loss_of(model, 1, link.rank))
        if link.rank == 0:
            with pytest.raises(StateError, match=r"rank 0: step 2 failed after the update .* checkpoint"):
                method.state_dict()
            method.load_state_dict(saved)
            assert method.state_dict().keys() == saved.keys()

    run_exchanges(2, body)


@pytest.mark.parametrize("count", [10, 103])
def test_states_stay_with_their_number_of_ranks(count: int, run_exchanges: Ranks) -> None:
    """Of 10 weights, rank 0 has 2 of 5 ranks' and 2 of 6 ranks', but not always the same ones."""

    def saved(exchange: Exchange, states: list[Any] | None = None) -> Any:
        model = nn.Linear(count, 1, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.linspace(1, 2, count))
        with Sharded(model, adamw(model), exchange.plan, group=exchange.link) as method:
            if states is not None:
                method.load_state_dict(states[exchange.link.rank])
            return method.state_dict()

    states = run_exchanges(5, saved)
    run_exchanges(5, lambda exchange: saved(exchange, redivide(states, 5)))
    divided = redivide(states, 6)
    with pytest.raises(StateError, match="number of ranks"):
        run_exchanges(6, lambda exchange: saved(exchange, divided))
