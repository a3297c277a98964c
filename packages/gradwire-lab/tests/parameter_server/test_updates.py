"""What a server's weights are after gradients have come, against torch's optimizers on the same sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.sync.trained import TrainedParameters
from gradwire_lab.parameter_server.session import Clocks
from gradwire_lab.parameter_server.stale_server import AtOnce, OnceARound, Updates
from support.servers import flat, sgd

MakeModel = Callable[[], nn.Sequential]
WORKERS = (1, 2, 3)


def served(kind: type[Updates], model: nn.Module, staleness: int = 0) -> tuple[Updates, Clocks, Any]:
    optimizer, clocks = sgd(model), Clocks(WORKERS, staleness)
    return (
        kind(TrainedParameters(model, optimizer, "the test"), optimizer, clocks, WORKERS),
        clocks,
        optimizer,
    )


def gradients(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def push(updates: Updates, clocks: Clocks, rank: int, gradient: torch.Tensor, seen: list[int]) -> bool:
    updates.gradients[rank].buffer.copy_(gradient)
    clocks.tick(rank)
    return updates.came(rank, seen.append)


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, gradient: torch.Tensor) -> None:
    """Let torch do the update."""
    start = 0
    for parameter in model.parameters():
        parameter.grad = gradient[start : start + parameter.numel()].view_as(parameter).clone()
        start += parameter.numel()
    optimizer.step()


def test_once_a_round_the_mean_of_all_is_applied_when_the_last_has_come(make_model: MakeModel) -> None:
    model, oracle = make_model(), make_model()
    updates, clocks, _ = served(OnceARound, model)
    its, count = sgd(oracle), flat(oracle).numel()
    seen: list[int] = []
    for step, order in enumerate([(1, 2, 3), (3, 1, 2)]):
        came = {rank: gradients(count, 10 * step + rank) for rank in WORKERS}
        before = flat(model)
        changed = [push(updates, clocks, rank, came[rank], seen) for rank in order[:2]]
        assert changed == [False, False]
        assert torch.equal(flat(model), before)
        assert push(updates, clocks, order[2], came[order[2]], seen)
        stepped(oracle, its, (came[1] + came[2] + came[3]) / 3)  # in the order of the ranks, not of arrival
        assert torch.equal(flat(model), flat(oracle))
    assert seen == [0, 1]


def test_at_once_every_gradient_is_applied_at_a_share_of_the_rate(make_model: MakeModel) -> None:
    model, oracle = make_model(), make_model()
    updates, clocks, optimizer = served(AtOnce, model, staleness=5)
    its, seen = sgd(oracle), list[int]()
    rate = its.param_groups[0]["lr"]
    its.param_groups[0]["lr"] = rate / len(WORKERS)
    for number, rank in enumerate((2, 2, 1)):
        gradient = gradients(flat(oracle).numel(), number)
        assert push(updates, clocks, rank, gradient, seen)
        stepped(oracle, its, gradient)
        assert torch.equal(flat(model), flat(oracle))
        assert optimizer.param_groups[0]["lr"] == rate
    assert seen == [0, 1, 0], "a schedule gets the worker's own step"


@pytest.mark.parametrize(
    ("kind", "lacking", "moves"), [(OnceARound, 1, True), (OnceARound, 3, False), (AtOnce, 1, False)]
)
def test_momentum_moves_no_parameter_that_nobody_reached(
    kind: type[Updates], lacking: int, moves: bool, make_model: MakeModel
) -> None:
    model = make_model()
    updates, clocks, _ = served(kind, model, staleness=5)
    count = flat(model).numel()
    for rank in WORKERS:
        push(updates, clocks, rank, torch.ones(count), [])
    first = next(model.parameters()).detach().clone()
    for rank in WORKERS[:lacking]:
        updates.absent[rank] = frozenset({0})
    for rank in WORKERS if kind is OnceARound else WORKERS[:1]:
        gradient = torch.ones(count)
        gradient[: first.numel()] = 0 if rank in WORKERS[:lacking] else 1
        push(updates, clocks, rank, gradient, [])
    assert torch.equal(next(model.parameters()), first) != moves
