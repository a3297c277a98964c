"""What becomes of a rank's own gradients: in older files, and in worlds of another size."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradwire
from gradwire.checkpoints import SUM
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.checkpoint import IN_FLIGHT, redivide

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
States = Callable[[int, Plan], list[Any]]
OWN = "gradwire/rank0/own"


def _pipe(exchange: Exchange, model: nn.Module, plan: Plan) -> gradwire.PipeSGD:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return gradwire.PipeSGD(model, optimizer, plan, group=exchange.link)


def _train(pipe: gradwire.PipeSGD, batch_loss: BatchLoss, steps: int) -> None:
    rank = pipe.exchange.link.rank
    for _ in range(steps):
        pipe.step(batch_loss(pipe.model, pipe.steps_done, slice(rank, rank + 1)))


@pytest.fixture
def states(run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss) -> States:
    """``states(world, plan)`` gives the states of all ranks after 5 steps."""

    def of(world: int, plan: Plan) -> list[Any]:
        def body(exchange: Exchange) -> dict[str, Any]:
            with _pipe(exchange, make_model(), plan) as pipe:
                _train(pipe, batch_loss, 5)
                return pipe.state_dict()

        return run_exchanges(world, body)

    return of


def _as_version_1(state: dict[str, Any]) -> dict[str, Any]:
    """Return what was written before own gradients were kept."""
    text = json.loads(state["gradwire/rank0/pipe"])
    assert text["version"] == 3
    for since in ("own", "absent", "own_absent", "sums", SUM):
        del text[since]
    return {"gradwire/rank0/pipe": json.dumps({**text, "version": 1}), IN_FLIGHT: state[IN_FLIGHT]}


def _as_version_2(state: dict[str, Any]) -> dict[str, Any]:
    """Return what was written before checksums were."""
    text = json.loads(state["gradwire/rank0/pipe"])
    for since in ("absent", "own_absent", "sums", SUM):
        del text[since]
    return {**state, "gradwire/rank0/pipe": json.dumps({**text, "version": 2})}


def test_averages_stand_in_for_own_gradients_that_an_older_file_lacks(
    states: States, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    plan = Plan(pipeline=3)
    state = states(2, plan)[0]
    assert not torch.equal(state[OWN], state[IN_FLIGHT][1:]), "own gradients are no averages"
    with_averages = {**_as_version_2(state), OWN: state[IN_FLIGHT][1:].clone()}
    olds = [_as_version_1(state), with_averages, redivide(states(2, plan), 1)[0]]

    def resume(exchange: Exchange, state: dict[str, Any]) -> torch.Tensor:
        model = make_model()
        with _pipe(exchange, model, plan) as pipe:
            pipe.load_state_dict(state)
            _train(pipe, batch_loss, 4)
        return nn.utils.parameters_to_vector(model.parameters()).detach().clone()

    def alone(state: dict[str, Any]) -> dict[str, Any]:
        return {
            **state,
            "gradwire/rank0/pipe": state["gradwire/rank0/pipe"].replace('world": 2', 'world": 1'),
        }

    first, *others = (run_exchanges(1, lambda e, s=s: resume(e, alone(s)))[0] for s in olds)
    assert all(torch.equal(first, other) for other in others)


def test_own_gradients_stay_where_the_number_of_ranks_does(states: States) -> None:
    olds = states(3, Plan(pipeline=2))
    same, fewer = redivide(olds, 3), redivide(olds, 2)
    for rank, (state, old) in enumerate(zip(same, olds, strict=True)):
        assert torch.equal(state[f"gradwire/rank{rank}/own"], old[f"gradwire/rank{rank}/own"])
    for rank, state in enumerate(fewer):
        assert json.loads(state[f"gradwire/rank{rank}/pipe"])["own"] == 0
        assert state[f"gradwire/rank{rank}/own"].shape == olds[0]["gradwire/rank0/own"].shape
