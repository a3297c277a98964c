"""What sharded training refuses, and what refuses its plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradwire
from gradwire import DSync, PipeSGD, Sharded
from gradwire.codecs import parse
from gradwire.errors import ExchangeError, SpecError, StateError
from gradwire.exchange import Exchange
from gradwire.links import Link
from gradwire.plan import Plan
from support.sharded_ranks import adamw, loss_of, make_model

Ranks = Callable[..., list[Any]]


def test_what_does_not_fit_is_refused(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        link: Link = exchange.link
        model = make_model()
        with pytest.raises(SpecError, match=r"with the algorithm ring and one bucket, got star"):
            Sharded(model, adamw(model), Plan(algorithm="star"), group=link)
        with pytest.raises(SpecError, match="expected 'bf16' or 'fp32' for a delta's dtype, got 'int8'"):
            Sharded(model, adamw(model), replicas="int8", group=link)  # type: ignore[arg-type]
        with pytest.raises(SpecError, match="elementwise optimizer"):
            Sharded(model, torch.optim.Adafactor(model.parameters()), group=link)
        other = make_model()
        with DSync(other, adamw(other), group=link) as d_sync:
            state = d_sync.state_dict()
        method = Sharded(model, adamw(model), group=link)
        with pytest.raises(StateError, match="expected this rank's state"):
            method.load_state_dict(state)
        method.close()

    run_exchanges(1, body)


def test_ranks_that_differ_are_told_before_the_first_step(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange, others: list[dict[str, Any]]) -> None:
        model = make_model()
        with pytest.raises(ExchangeError, match="but those of rank 2 differ"):
            Sharded(model, adamw(model), group=exchange.link, **others[exchange.link.rank == 2])

    for others in (
        [{"replicas": "bf16"}, {"replicas": "fp32"}],
        [{"max_norm": 1.0}, {"max_norm": 2.0}],
        [{"plan": "quantize:8"}, {"plan": "quantize:4"}],
    ):
        run_exchanges(3, lambda exchange, others=others: body(exchange, others))


def test_a_sharded_plan_is_its_own_and_no_other_methods(run_exchanges: Ranks) -> None:
    plan = Plan(parse("quantize:8"), exchange="sharded")

    def body(exchange: Exchange) -> None:
        model, link = make_model(), exchange.link
        with Sharded(model, adamw(model), plan, group=link) as method:
            assert method.plan == plan
            method.step(loss_of(model, 0, link.rank))
        for given in (None, "quantize:8", Plan(parse("quantize:8"), pipeline=2)):
            model = make_model()
            with Sharded(model, adamw(model), given, group=link) as method:
                assert (method.plan.exchange, method.plan.pipeline) == ("sharded", 1)
        refused: list[tuple[str, Callable[[nn.Module], Any]]] = [
            ("DSync", lambda own: DSync(own, adamw(own), plan, group=link)),
            ("PipeSGD", lambda own: PipeSGD(own, adamw(own), plan, group=link)),
            ("PipeSGD", lambda own: PipeSGD(own, adamw(own), plan, correction="none", group=link)),
            ("all_reduce", lambda _: gradwire.all_reduce(torch.ones(2), plan=plan)),
        ]
        for who, make in refused:
            with pytest.raises(SpecError, match=f"^{who}: expected a plan .* with gradwire.sharded.Sharded$"):
                make(make_model())

    run_exchanges(2, body)
