"""Faults while buckets of a pipeline are in flight during backward: an error on every rank, and no hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import PipeSGD
from gradwire.errors import ExchangeError, StateError
from gradwire.exchange import Exchange
from gradwire.links.base import Link
from gradwire.plan import Plan
from support.faulty_link import Fault, FaultyLink
from support.in_backward import met_by, weights
from support.pipes import pipe_sgd

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BUCKETS = Plan(bucket_nbytes=4)  # one for each of the model's four parameters
HEALTHY_STEPS = 4

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def loss_of(model: nn.Sequential, in_backward: Callable[[], None]) -> torch.Tensor:
    """Return a loss whose backward calls a function after the last layer's gradients, of two buckets."""
    middle = met_by(model[1](model[0](torch.ones(3, 5))), in_backward)
    return model[2](middle).square().mean()  # type: ignore[no-any-return]


def started(model: nn.Sequential, exchange: Exchange, pipeline: int, correction: str) -> PipeSGD:
    """Return a pipeline after some steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = pipe_sgd(model, optimizer, exchange, pipeline, correction=correction)
    for _ in range(HEALTHY_STEPS):
        method.step(partial(loss_of, model, lambda: None))
    return method


def train(method: PipeSGD, model: nn.Sequential, in_backward: Callable[[], None], steps: int = 5) -> None:
    """Do some steps, by default as many as an error may be late."""
    for _ in range(steps):
        method.step(partial(loss_of, model, in_backward))


@pytest.mark.parametrize("correction", ["none", "eager"])
@pytest.mark.parametrize("pipeline", [1, 2, 3])
def test_a_peer_that_dies_in_backward_is_an_error_on_the_others(
    pipeline: int, correction: str, run_exchanges: Ranks, make_model: MakeModel
) -> None:
    def body(exchange: Exchange) -> tuple[str, float]:
        model = make_model()
        method = started(model, exchange, pipeline, correction)
        dies = exchange.link.rank == 1
        began = time.perf_counter()
        with pytest.raises(ExchangeError) as caught, method:
            train(method, model, exchange.link.close if dies else lambda: None)
        return str(caught.value), time.perf_counter() - began

    for said, took_s in run_exchanges(3, body, BUCKETS, timeout_s=30.0):
        assert "has closed its link" in said
        assert took_s < 25, "no rank waits for a timeout"


@pytest.mark.parametrize("correction", ["none", "eager"])
@pytest.mark.parametrize("pipeline", [1, 2, 3])
def test_backward_that_fails_ends_all_ranks(
    pipeline: int, correction: str, run_exchanges: Ranks, make_model: MakeModel
) -> None:
    def stumble() -> None:
        raise ZeroDivisionError("stumbled")

    def body(exchange: Exchange) -> float:
        model = make_model()
        method = started(model, exchange, pipeline, correction)
        began = time.perf_counter()
        if exchange.link.rank != 1:
            with pytest.raises(ExchangeError), method:
                train(method, model, lambda: None)
            return time.perf_counter() - began
        with pytest.raises(ZeroDivisionError, match="stumbled"):
            method.step(partial(loss_of, model, stumble))
        before = weights(model)
        for _ in range(2):
            with pytest.raises(ExchangeError) as caught:
                method.step(partial(loss_of, model, lambda: None))
            said = str(caught.value)
            assert f"rank 1: step {HEALTHY_STEPS + 1} failed with buckets in flight (stumbled)" in said
        assert torch.equal(weights(model), before)
        method.close()
        return time.perf_counter() - began

    assert max(run_exchanges(3, body, BUCKETS, timeout_s=30.0)) < 25, "no rank waits for a timeout"


def test_a_written_parameter_in_an_eager_step_ends_all_ranks(
    run_exchanges: Ranks, make_model: MakeModel
) -> None:
    def body(exchange: Exchange) -> None:
        model = make_model()

        def write() -> None:
            with torch.no_grad():
                next(model[0].parameters()).add_(1)

        method = started(model, exchange, 2, "eager")
        with pytest.raises(StateError, match="expected unchanged parameters"), method:
            method.step(partial(loss_of, model, write))

    run_exchanges(2, body, BUCKETS)


def test_a_forward_pass_that_fails_leaves_the_pipeline_whole(
    run_exchanges: Ranks, make_model: MakeModel
) -> None:
    def body(exchange: Exchange, stumbles: bool) -> torch.Tensor:
        model = make_model()
        with started(model, exchange, 2, "eager") as method:
            if stumbles:
                with pytest.raises(ZeroDivisionError):
                    method.step(lambda: torch.ones(()) * (1 // 0))
            for _ in range(3):
                method.step(partial(loss_of, model, lambda: None))
        return weights(model)

    straight = run_exchanges(2, partial(body, stumbles=False), BUCKETS)
    assert all(
        torch.equal(each, straight[0]) for each in run_exchanges(2, partial(body, stumbles=True), BUCKETS)
    )


@pytest.mark.parametrize("pipeline", [1, 2])
def test_a_damaged_frame_names_rank_peer_and_step(
    pipeline: int, run_exchanges: Ranks, make_model: MakeModel
) -> None:
    def body(exchange: Exchange) -> str:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        method = pipe_sgd(model, optimizer, exchange, pipeline)
        with pytest.raises(ExchangeError) as caught, method:
            train(method, model, lambda: None, steps=20)
        return str(caught.value)

    def wrap(link: Link) -> Link:
        return FaultyLink(link, [Fault("corrupt", rank=1, step=40, bit=40 * 8)])

    first, second = run_exchanges(2, body, BUCKETS, wrap=wrap)
    assert all(word in first for word in ("rank 0", "rank 1", "checksum"))
    assert "rank 1" in second
